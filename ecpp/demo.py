"""The demo: what ECPP does, seen on two cores in two minutes."""

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ecpp.cli.judge import print_table
from ecpp.config import Config
from ecpp.report import write_report
from ecpp.run import evaluate_run, pretrain
from ecpp.run.pictures import neighbours_picture, views_picture

ECPP = Config(
    source="patterns:4000",
    views=6,
    large=32,
    small=20,
    encoder="resnet10",
    width=16,
    epochs=3,
    batch_size=64,
)


def arms(seed: int) -> dict[str, Config]:
    """ECPP, two-view SimCLR for as many epochs, and for as many view passes (each of them a large one)."""
    ecpp = replace(ECPP, seed=seed)
    two = replace(ecpp, views=2, small=None, loss="vanilla")
    return {
        "ecpp": ecpp,
        "simclr-equal-epochs": two,
        "simclr-equal-passes": replace(two, epochs=ecpp.epochs * ecpp.views // two.views),
    }


def run_demo(out: Path | None, *, seed: int = 0) -> Path:
    """Train and judge every arm, print the table, write the page; returns the page."""
    console = Console()
    started = time.monotonic()
    out = out or free_folder(Path("runs/demo"))
    runs = []
    for name, config in arms(seed).items():
        run = out / name
        console.rule(name)
        pretrain(config, run, console=console)
        evaluate_run(run)
        runs.append(run)
    views_picture(arms(seed)["ecpp"], runs[0] / "views.png")
    neighbours_picture(runs[0], runs[0] / "neighbours.png")
    print_table(runs)
    page = write_report(
        runs,
        out / "report.html",
        title="ecpp demo",
        intro="An encoder pretrained without labels on generated patterns: K views of every image with all pairs "
        "(ECPP), against two views (SimCLR) for as many epochs and for as many view passes.",
    )
    console.print(f"{time.monotonic() - started:.0f} s. The page: {page.resolve()}", soft_wrap=True)
    return page


def free_folder(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, … that is not there yet."""
    n, free = 1, path
    while free.exists():
        n += 1
        free = path.with_name(f"{path.name}-{n}")
    return free
