"""`ecpp evaluate` and `ecpp report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from ecpp.cli.options import read


@dataclass(frozen=True)
class Evaluate:
    """kNN and linear accuracy of a run's encoder beside a random one's; also in RUN/evaluation.json."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    source: tyro.conf.Positional[str | None] = None
    """Labelled images with train and test splits ; None takes the run's own source."""
    val: str | None = None
    """Labelled images to count on, if the source has no test split of its own."""
    limit: int | None = None
    """Use at most this many labels, of every class alike; None takes all."""
    workers: int | None = None
    """Processes that decode large images; None takes as many as the run."""
    momentum: float | None = None
    """Momentum of the linear probe; None takes the paper's: 0.9, or 0.995 for ImageNet's look (a misprint?)."""


@dataclass(frozen=True)
class Report:
    """One page about one or several runs: what their views look like, curves, and a table."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The run folders."""
    out: Path = Path("report.html")
    """The page."""
    title: str = "ecpp report"
    """Its heading."""


def evaluate(argv: list[str]) -> None:
    options = read(Evaluate, "evaluate", argv)
    from ecpp.run import evaluate_run

    result = evaluate_run(
        options.run,
        options.source,
        val=options.val,
        limit=options.limit,
        workers=options.workers,
        momentum=options.momentum,
    )
    print_table([options.run])
    for r in result["results"]:
        print(f"{r['protocol']}: {r['details']}")
    print(options.run / "evaluation.json")


def report(argv: list[str]) -> None:
    options = read(Report, "report", argv)
    if not options.runs:
        raise ValueError("name at least one run folder: ecpp report RUN...")
    from ecpp.report import write_report

    print(write_report(options.runs, options.out, title=options.title).resolve())


CONSOLE = ("name", "linear_top1", "knn_top1", "labels", "seconds", "view_passes", "compute")


def print_table(runs: Sequence[Path]) -> None:
    """The runs side by side."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ecpp.report import cells, columns, summary

    rows = summary(runs)
    shown = [c for c in columns(rows) if c.key in CONSOLE]
    table = Table(*(c.heading for c in shown))
    for row in rows:
        table.add_row(*map(Text, cells(row, shown)))  # a folder's name is no markup
    Console().print(table)
