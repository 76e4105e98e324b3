"""What the README and the examples print runs as printed."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch

from ecpp.cli import COMMANDS

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
    report = {"read", "text", "table", "figures", "charts", "sections", "page", "style", "sheet"}
    cli = {p.stem for p in (ROOT / "ecpp" / "cli").glob("*.py")}
    for path in (ROOT / "ecpp").rglob("*.py"):
        if path.stem not in {"__init__", "__main__"} | report | cli:
            assert path.name in house, path


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path):
    main = runpy.run_path(str(path))["main"]
    assert main(steps=3) > 0
