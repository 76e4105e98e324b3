"""`ecpp evaluate` and `ecpp report`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tyro

from ecpp.cli.options import WhichEpoch, read


@dataclass(frozen=True)
class Evaluate:
    """Accuracies of a run's encoder, each by the name of its protocol and beside a random encoder's.

    Also in RUN/evaluation.json, where those of earlier calls on the same data stay. Protocols: linear,
    linear-sweep, knn, knn-grid, semi-1, semi-10 on frozen features; linear-aug, finetune, supervised,
    semi-1-finetune, semi-10-finetune on augmented images.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    source: tyro.conf.Positional[str | None] = None
    """Labelled images with train and test splits ; None takes the run's own source."""
    protocols: str = "linear,knn"
    """Names of protocols, with commas between them."""
    transfer: tuple[str, ...] = ()
    """Other labelled sources with classes of their own, judged by linear-sweep as transfer:NAME."""
    val: str | None = None
    """Labelled images to count on, if the source has no test split of its own."""
    limit: int | None = None
    """Use at most this many labels, of every class alike; None takes all."""
    workers: int | None = None
    """Processes that decode large images; None takes as many as the run."""
    momentum: float | None = None
    """Momentum of the linear probe; None takes the paper's: 0.9, or 0.995 for ImageNet's look (a misprint?)."""
    epochs: int | None = None
    """Epochs of linear-aug, finetune and supervised; None takes 100, 30 and 30."""
    lr: float | None = None
    """Learning rate of finetune and supervised; None takes 0.1."""
    recalibrate_bn: bool = False
    """Take BatchNorm statistics anew from training images of the large size; the protocols are then called NAME+bn."""
    epoch: WhichEpoch = None
    """Judge the weights of this epoch, or of the best one, into RUN/evaluation-EPOCH.json, which reports do not
    read; needs pretrain --keep-epochs or --keep-best. None takes the newest."""
    cache: bool = True
    """Keep frozen features in RUN/features (at most 8 GiB) and use them again."""
    curve: bool = False
    """Judge the encoder of every epoch by linear instead, into RUN/curve.json; needs pretrain --keep-epochs."""


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
    from ecpp.run import RunFolder, curve_of_run, evaluate_run

    values = asdict(options)
    protocols, curve = values.pop("protocols"), values.pop("curve")
    if curve:
        used = ("run", "source", "val", "limit", "workers", "momentum")
        _check_unused(options, *used, "curve")
        curve_of_run(**{name: values[name] for name in used}, say=_say)
        print(options.run / "curve.json")
        return
    names = [name.strip() for name in protocols.split(",") if name.strip()]
    result = evaluate_run(**values, protocols=names, say=_say)
    if os.environ.get("RANK", "0") != "0":  # torchrun's other processes
        return
    _print_protocols(options.run, result)
    for r in result["results"]:
        print(f"{r['protocol']}: {r['details']}")
    print(RunFolder(options.run).evaluation(options.epoch))


def _check_unused(options: Evaluate, *used: str) -> None:
    """--curve judges all kept epochs by linear: what it does not read is refused."""
    for field in fields(options):
        if field.name not in used and getattr(options, field.name) != field.default:
            flag = ("no-" if field.default is True else "") + field.name.replace("_", "-")
            raise ValueError(
                f"--{flag} does nothing beside --curve, which judges every kept epoch by linear: leave it out"
            )


def _print_protocols(run: Path, evaluation: dict[str, Any]) -> None:
    """The protocols of one run, one row each."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ecpp.report import HEADS, protocol_rows, read_runs

    table = Table(title=f"weights of epoch: {evaluation['epoch']}" if "epoch" in evaluation else None)
    for i, head in enumerate(HEADS):
        table.add_column(head, no_wrap=i == 0)
    for row in protocol_rows(replace(read_runs([run])[0], evaluation=evaluation)):
        table.add_row(*map(Text, row))
    Console().print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
