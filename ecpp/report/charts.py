"""Which curves a report shows, and what is said beneath each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ecpp.report.figures import Series, curves
from ecpp.report.read import Record, Run, is_number
from ecpp.report.table import setting_key

MOST_POINTS = 150  # of one line: more would not be seen
Points = list[tuple[float, float]]


class Chart(NamedTuple):
    title: str
    svg: str
    caption: str


class Unit(NamedTuple):
    label: str
    size: float


def charts(runs: Sequence[Run]) -> tuple[list[Chart], list[str]]:
    """The charts that have data, and a sentence for each one that has none."""
    drawn: list[Chart] = []
    absent: list[str] = []
    curves_there = any(run.curve for run in runs)  # they are made when asked for: none are missed
    linear = (
        (_linear_by_epoch, _linear_by_pairs, _linear_by_passes, _linear_by_seconds) if curves_there else ()
    )
    for make in (_loss, *linear, _knn_by_epoch, _knn_by_passes, _knn_by_seconds, _spread):
        chart = make(runs)
        if isinstance(chart, Chart):
            drawn.append(chart)
        else:
            absent.append(chart)
    return drawn, absent


def _loss(runs: Sequence[Run]) -> Chart | str:
    # a sum over pairs grows with K: per pair, runs of different K share an axis
    per_pair = len({(run.plan.get("pairs_per_image"), _summed(run)) for run in runs}) > 1
    title = "Loss per pair, by epoch" if per_pair else "Loss, by epoch"

    def points(run: Run) -> Points:
        pairs = run.plan.get("pairs_per_image") or 1
        divisor = pairs if per_pair and _summed(run) else 1
        whole = _points(run.epochs, "epoch", "loss")
        return [(x, y / divisor) for x, y in whole or _points(run.steps, "epoch", "loss")]

    caption = "Mean training loss of each epoch."
    if not all(run.epochs for run in runs):
        caption += " A run that is still in its first epoch shows its logged steps."
    if per_pair:
        caption += " Sums over pairs are divided by the number of pairs."
    if len({run.settings.get("loss") for run in runs}) > 1:
        caption += " Different losses are in use: compare shapes, not heights."
    return _chart(runs, title, points, Unit("epoch", 1.0), "loss per pair" if per_pair else "loss", caption)


def _summed(run: Run) -> bool:
    return bool(run.settings.get("pair_reduction") == "sum")


def _knn_by_epoch(runs: Sequence[Run]) -> Chart | str:
    return _knn(
        runs,
        "epoch",
        Unit("epoch", 1.0),
        "kNN, by epoch",
        "Top-1 accuracy of the kNN probe that runs during training.",
    )


def _millions(runs: Sequence[Run], key: str, label: str) -> Unit:
    most = max((run.last(key) or 0 for run in runs), default=0)
    return Unit(f"{label} (millions)", 1e6) if most >= 2e6 else Unit(label, 1.0)


def _clock(runs: Sequence[Run]) -> Unit:
    most = max((run.last("seconds") or 0 for run in runs), default=0)
    if most >= 7200:
        return Unit("training time (hours)", 3600.0)
    return Unit("training time (minutes)", 60.0) if most >= 180 else Unit("training time (seconds)", 1.0)


def _knn_by_passes(runs: Sequence[Run]) -> Chart | str:
    unit = _millions(runs, "view_passes", "view passes")
    caption = "The same numbers against work done: one view of one image encoded is one pass."
    return _knn(runs, "view_passes", unit, "kNN, by view passes", caption)


def _knn_by_seconds(runs: Sequence[Run]) -> Chart | str:
    unit = _clock(runs)
    caption = "The same numbers against the clock, training alone."
    if len({run.environment.get("machine") for run in runs}) > 1:
        caption += " These runs were not made on one machine."
    return _knn(runs, "seconds", unit, "kNN, by wall time", caption)


def _knn(runs: Sequence[Run], x: str, unit: Unit, title: str, caption: str) -> Chart | str:
    def points(run: Run) -> Points:
        return [(a, 100 * b) for a, b in _points(run.epochs, x, "knn")]

    return _chart(runs, title, points, unit, "kNN top-1 (%)", caption, (0.0, 100.0))


def _linear_by_epoch(runs: Sequence[Run]) -> Chart | str:
    floors = [f"{run.label} {100 * run.curve_floor:.1f} %" for run in runs if run.curve_floor is not None]
    caption = (
        "Top-1 accuracy of a linear layer trained afresh on the frozen encoder of each epoch, after training."
    )
    if floors:
        caption += f" Random encoder: {', '.join(floors)}."
    return _linear(runs, "epoch", Unit("epoch", 1.0), "Linear accuracy, by epoch", caption)


def _linear_by_pairs(runs: Sequence[Run]) -> Chart | str:
    caption = "The same numbers against positive pairs that were taught: images times pairs per image."
    unit = _millions(runs, "pairs", "processed pairs")
    return _linear(runs, "pairs", unit, "Linear accuracy, by processed pairs", caption)


def _linear_by_passes(runs: Sequence[Run]) -> Chart | str:
    unit = _millions(runs, "view_passes", "view passes")
    return _linear(
        runs, "view_passes", unit, "Linear accuracy, by view passes", "The same against work done."
    )


def _linear_by_seconds(runs: Sequence[Run]) -> Chart | str:
    caption = "The same against the clock, training alone."
    return _linear(runs, "seconds", _clock(runs), "Linear accuracy, by wall time", caption)


def _linear(runs: Sequence[Run], x: str, unit: Unit, title: str, caption: str) -> Chart | str:
    def points(run: Run) -> Points:
        return [(a, 100 * b) for a, b in _points(run.curve, x, "top1")]

    return _chart(runs, title, points, unit, "linear top-1 (%)", caption, (0.0, 100.0))


def _spread(runs: Sequence[Run]) -> Chart | str:
    caption = "Standard deviation of the embeddings over a batch. A fall to nought is collapse."
    return _chart(
        runs,
        "Spread of the embeddings, by epoch",
        lambda run: _points(run.steps, "epoch", "embedding_std"),
        Unit("epoch", 1.0),
        "embedding std",
        caption,
        (0.0, math.inf),
    )


def _points(records: Sequence[Record], x: str, y: str) -> Points:
    return [(r[x], r[y]) for r in records if is_number(r.get(x)) and is_number(r.get(y))]


def _chart(
    runs: Sequence[Run],
    title: str,
    points: Callable[[Run], Points],
    unit: Unit,
    y_label: str,
    caption: str,
    y_limits: tuple[float, float] = (-math.inf, math.inf),
) -> Chart | str:
    found = [(run, [(x / unit.size, y) for x, y in points(run)]) for run in runs]
    every = [y for _, line in found for _, y in line]
    if not any(math.isfinite(y) for y in every):
        return f"“{title}” is not drawn: no run has logged a finite number for it."
    if broken := sum(not math.isfinite(y) for y in every):
        caption += f" Lines break where a value is not finite ({broken} in all)."
    styles = _styles(runs)
    series = [
        Series(run.label, _thin(line), *styles[run.label])
        for run, line in found
        if any(math.isfinite(y) for _, y in line)
    ]
    if without := [run.label for run, line in found if not line]:
        caption += f" No data from {', '.join(f'“{label}”' for label in without)}."
    svg = curves(
        series,
        title=title,
        x_label=unit.label,
        y_label=y_label,
        whole_x=unit.label == "epoch" and max(x for s in series for x, _ in s.points) >= 1,
        y_limits=y_limits,
        legend=len(runs) > 1,
    )
    return Chart(title, svg, caption)


def _styles(runs: Sequence[Run]) -> dict[str, tuple[int, int]]:
    """Seeds of one setting share a colour; every line has its own pair of colour and dash."""
    members: dict[str, list[str]] = {}
    for run in runs:
        members.setdefault(setting_key(run), []).append(run.label)
    return {
        label: (colour, colour + place)
        for colour, labels in enumerate(members.values())
        for place, label in enumerate(labels)
    }


def _thin(line: Points) -> Points:
    stride = -(-len(line) // MOST_POINTS)
    return line if stride <= 1 else [*line[:-1:stride], line[-1]]
