"""`ecpp demo`."""

from dataclasses import dataclass
from pathlib import Path

from ecpp.cli.options import read


@dataclass(frozen=True)
class Demo:
    """Pretrain on generated images and compare ECPP with two-view SimCLR and with a random encoder."""

    out: Path | None = None
    """Folder for the runs and the page (default: runs/demo, or the next free runs/demo-N)."""
    seed: int = 0
    """Fixes weights, order and views."""


def demo(argv: list[str]) -> None:
    options = read(Demo, "demo", argv)
    from ecpp.demo import run_demo

    run_demo(options.out, seed=options.seed)
