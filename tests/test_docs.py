"""What the README and the examples print runs as printed."""

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
from ecpp.cli import COMMANDS
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
