"""Who may import whom: the walls of the house."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ecpp"

# room: the rooms that it may import, itself included silently
MAY = {
    "fits": set(),
    "config": {"method", "fits"},  # of method its table, which is plain Python
    "recipes": {"config"},
    "distributed": set(),
    "objective": set(),
    "views": set(),
    "report": set(),
    "model": {"distributed"},
    "data": {"views"},  # what makes batches alone: see below
    "method": {"views", "model", "objective", "distributed"},
    "evaluate": {"data", "model", "distributed"},
    "train": {"method", "model", "data", "evaluate", "views", "distributed"},
    "run": {
        "config", "objective", "model", "views", "data", "distributed", "method", "evaluate", "train", "report",
    },
    "export": {"config", "model", "views", "data", "method", "evaluate", "train", "run", "report"},
    "demo": {"config", "run", "report", "cli"},
    "cli": {"config", "recipes", "data", "run", "report", "export", "demo"},  # data: scan and pack alone
    "__main__": {"cli"},
    "__init__": {"objective", "views", "method", "run"},  # lazily, or for type checkers alone
}  # fmt: skip
HEAVY = {"torch", "torchvision", "timm", "matplotlib", "numpy", "PIL", "safetensors"}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Every module that a file imports, anywhere in it, with dots."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            if node.module == "ecpp":
                yield from (f"ecpp.{a.name}" for a in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_room_may(path):
    here = room(path)
    for name in imports(path):
        if name.startswith("ecpp."):
            there = name.split(".")[1]
            assert there == here or there in MAY[here], f"{here} imports {there}"
            if here == "data" and there == "views":
                assert path.name in ("stream.py", "crops.py", "ahead.py"), (
                    "in data, streams alone render views"
                )
            if here == "cli" and there == "data":
                assert path.name == "sources.py", "everything else goes through run"
        if here in ("config", "recipes") and not name.startswith("ecpp"):
            assert name.split(".")[0] in {"dataclasses", "types", "typing", "difflib", "json"}


def test_only_the_top_reads_a_config():
    for path in modules():
        if room(path) not in {"cli", "recipes", "paper", "run", "demo", "config"}:
            assert "ecpp.config" not in set(imports(path)), path


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_house_rules(path):
    text, tree = path.read_text(), ast.parse(path.read_text())
    assert len(text.splitlines()) <= 260, "no longer fits in the head"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert), "errors say what to do; assert is for tests"
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            assert not re.search(r"^$|\b(Base)?Exception\b", caught), "blanket except"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
            assert "random" not in [n.split(".")[0] for n in names], (
                "random numbers come from torch or views.draws"
            )
    assert "np.random" not in text
    for line in text.splitlines():
        if "type: ignore" in line:
            assert re.search(r"type: ignore\[[\w, -]+\]", line), "an ignore names what it ignores"


def test_every_room_is_known():
    assert {room(p) for p in modules()} <= MAY.keys()
