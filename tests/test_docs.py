"""What the README and the examples print runs as printed."""

import ast
import re
import runpy
import shlex
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ecpp import views
from ecpp.cli import COMMANDS, main
from ecpp.config import Config
from ecpp.method import METHODS, Entry
from ecpp.run import about, build
from ecpp.run.resolve import resolve_views

ROOT = Path(__file__).parents[1]


def blocks(name, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_the_loop_in_the_readme_runs_as_printed():
    (loop,) = blocks("README.md", "python")
    assert len([line for line in loop.splitlines() if line and not line.startswith(("import", "from"))]) <= 10
    assert set(re.findall(r"from ecpp import (.*)", loop)) == {"objective, views"}
    space = {}
    exec(loop, space)
    assert torch.isfinite(space["loss"])
    assert space["z"].shape[:2] == (6, 64)


def test_every_command_in_the_readme_exists():
    lines = [line for block in blocks("README.md", "sh") for line in block.splitlines()]
    called = [shlex.split(line, comments=True)[1] for line in lines if line.startswith("ecpp ")]
    assert set(called) <= COMMANDS.keys()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {line.split()[1] for line in lines if line.startswith("make ")} <= set(targets)


FEWER = {
    "range(0, 2000)": "range(0, 40)",
    "range(2000, 2200)": "range(2000, 2040)",
    "range(3000, 3200)": "range(3000, 3020)",
    "in range(10)": "in range(1)",
}  # what the test of the tutorial has less of


@pytest.mark.slow
def test_the_tutorial_runs_as_printed(tmp_path, monkeypatch, capsys):
    """Every block in order; fewer images and epochs, threads and batches to match."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "tutorial.md").read_text()
    for fewer in FEWER:
        assert text.count(fewer) == 1
    commands, space = [], {}
    for language, block in re.findall(r"```(sh|python)\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            for long, short in FEWER.items():
                block = block.replace(long, short)
            exec(block, space)
            continue
        for line in block.splitlines():
            words = shlex.split(line)[1:]
            commands.append(words[0])
            if words[0] == "pretrain":
                words[words.index("--epochs") + 1] = "1"
                words += ["--threads=1", "--batch-size=16"]
            main(words)
    assert commands == ["scan", "views", "pretrain", "evaluate", "neighbours", "embed", "export"]
    assert re.search(r"\d+ of 20 test images", capsys.readouterr().out)
    state = torch.load("classifier.pth", weights_only=True)
    assert state["fc.weight"].shape == (10, 512)
    card = (tmp_path / "encoder.safetensors.md").read_text()
    (printed,) = re.findall(r"encoder = (timm.create_model\(.*?\n\).eval\(\))", text, flags=re.DOTALL)
    (proven,) = re.findall(r"encoder = (timm.create_model\(.*?\n\).eval\(\))", card, flags=re.DOTALL)
    assert ast.dump(ast.parse(printed)) == ast.dump(ast.parse(proven)), "the call is the card's"


@pytest.mark.parametrize("page", ["tutorial", "export"])
def test_every_command_in_the_docs_exists(page):
    lines = [line for block in blocks(f"docs/{page}.md", "sh") for line in block.splitlines()]
    assert {shlex.split(line)[1] for line in lines} <= COMMANDS.keys()


def test_links_in_the_docs_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_map_names_every_module():
    house = (ROOT / "docs" / "house.md").read_text()
    report = {"read", "text", "table", "figures", "charts", "sections", "page", "style", "sheet", "heat"}
    cli = {p.stem for p in (ROOT / "ecpp" / "cli").glob("*.py")}
    for path in (ROOT / "ecpp").rglob("*.py"):
        if path.stem not in {"__init__", "__main__"} | report | cli:
            assert path.name in house, path


def test_the_method_in_the_docs_is_one_file_and_one_entry(monkeypatch):
    code, entry = blocks("docs/methods.md", "python")
    assert len(code.splitlines()) <= 60
    assert len(entry.splitlines()) == 1
    module = types.ModuleType("ecpp.method.align")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, value in eval(f"{{{entry}}}", {"Entry": Entry}).items():
        monkeypatch.setitem(METHODS, name, value)
    config = Config(source="", method="align", views=3, encoder="resnet10", width=4, batch_size=8)
    config = replace(resolve_views(config, 16), device="cpu", precision="fp32")
    method = build.build_method(config)
    plan = build.build_plan(config)
    images, samples = torch.randint(0, 256, (8, 3, 20, 20), dtype=torch.uint8), torch.arange(8)
    sides = torch.tensor([[20, 20]] * 8)
    batch = views.render(plan, images, samples, views.draw(plan, samples, sides, seed=0, epoch=0))
    optimizer = torch.optim.SGD(method.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        loss, shown = method(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert shown["pair_loss"].sum().item() / 2 == pytest.approx(losses[-1], rel=1e-4)
    assert about.name_of(config) == "Align×Spread×3"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path):
    main = runpy.run_path(str(path))["main"]
    assert main(steps=3) > 0
