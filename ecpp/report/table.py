"""The headline table as plain rows: the page and the console print the same one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from ecpp.report import text
from ecpp.report.read import Record, Run, read_runs

Row = dict[str, Any]
NAMES = {"linear": "linear", "knn": "kNN"}  # the headline; all others have a table of their own
LABELS_ONLY = ("seed", "name", "out")  # settings that do not make two runs different methods


class Column(NamedTuple):
    key: str
    heading: str
    show: Callable[[Row], str]


def summary(runs: Sequence[Path]) -> list[Row]:
    """One row per run; then mean ± sd over seeds; then the random encoder. None: not known.

    `kind` is run, mean or floor. Every row has the same keys; `KEY_sd` stands beside a mean.
    """
    return rows(read_runs(runs))


def rows(runs: Sequence[Run]) -> list[Row]:
    single = [_run_row(run, list(NAMES)) for run in runs]
    by_label = {row["name"]: row for row in single}
    means = [_mean_row([by_label[run.label] for run in group]) for group in seed_groups(runs)]
    return single + means + _floor_rows(single, runs)


def protocols(runs: Sequence[Run]) -> list[str]:
    """All that occur, those of the headline first."""
    return list(dict.fromkeys([*NAMES, *(str(r["protocol"]) for run in runs for r in run.results)]))


def headline(run: Run, protocol: str) -> Record:
    """The result that the table shows: the one with most labels, where there are several."""
    found = [r for r in run.results if r["protocol"] == protocol]
    return max(found, key=lambda r: r.get("labels") or 0, default={})


def setting_key(run: Run) -> str:
    """Equal for runs that differ only in seed (and in what they are called)."""
    kept = {k: v for k, v in run.settings.items() if k not in LABELS_ONLY}
    return json.dumps([kept, run.plan], sort_keys=True)


def seed_groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Two or more runs that differ only in seed and have come equally far."""
    groups: dict[tuple[str, float | None], list[Run]] = {}
    for run in runs:
        groups.setdefault((setting_key(run), _epochs_done(run)), []).append(run)
    return [g for g in groups.values() if len(g) > 1 and len(_seeds(g)) == len(g)]


def columns(table: Sequence[Row]) -> list[Column]:
    """Headings and how to print each value; the floor stands beside the number it belongs to."""
    found = [key.removesuffix("_top1") for key in table[0] if key.endswith("_top1")]
    measured: list[Column] = []
    for protocol in found:
        name = NAMES.get(protocol, protocol)
        measured.append(_measured(f"{protocol}_top1", f"{name} top-1", text.percent))
        measured.append(_measured(f"{protocol}_floor", f"{name} floor", text.percent))
    return [
        Column("name", "run", lambda row: str(row["name"])),
        _measured("views", "K", text.count),
        _measured("pairs_per_image", "pairs per image", text.count),
        Column("epochs", "epochs", _epochs_text),
        Column("encoder", "encoder", lambda row: row["encoder"] or text.MISSING),
        *measured,
        Column("labels", "labels", lambda row: _labels_text(row, found)),
        _measured("seconds", "wall time", text.duration),
        _measured("view_passes", "view passes", text.count),
        _measured("compute", "compute (large views)", text.count),
    ]


def cells(row: Row, shown: Sequence[Column]) -> list[str]:
    return [column.show(row) for column in shown]


def _measured(key: str, heading: str, form: Callable[..., str]) -> Column:
    return Column(key, heading, lambda row: form(row[key], row.get(f"{key}_sd")))


def _epochs_text(row: Row) -> str:
    done, planned = row["epochs"], row["epochs_planned"]
    if done is None or planned is None or done >= planned:
        return text.count(done)
    return f"{text.count(done)} of {text.count(planned)}"


def _labels_text(row: Row, found: Sequence[str]) -> str:
    numbers = dict.fromkeys(row[f"{protocol}_labels"] for protocol in found)
    return " / ".join(text.count(n) for n in numbers if n is not None) or text.MISSING


def _epochs_done(run: Run) -> float | None:
    return run.epochs[-1]["epoch"] if run.epochs else 0 if run.steps else None


def _seeds(group: Sequence[Run]) -> set[str]:
    return {json.dumps(run.settings.get("seed")) for run in group}


def _run_row(run: Run, found: Sequence[str]) -> Row:
    passes, relative = run.last("view_passes"), run.plan.get("relative_compute")
    compute = None
    if passes is not None and relative is not None:
        # the plan's cost is that of all K views of one image, in passes of a large view
        compute = passes / run.n_views * relative
    row: Row = {
        "kind": "run",
        "name": run.label,
        "path": str(run.path),
        "n": 1,
        "seed": run.settings.get("seed"),
        "plan": run.plan_text(),
        "views": run.n_views,
        "pairs_per_image": run.plan.get("pairs_per_image"),
        "epochs": _epochs_done(run),
        "epochs_planned": run.settings.get("epochs"),
        "encoder": run.settings.get("encoder"),
        "width": run.settings.get("width"),
        "seconds": run.last("seconds"),
        "view_passes": passes,
        "compute": compute,
    }
    for protocol in found:
        result = headline(run, protocol)
        for key in ("top1", "floor", "labels", "tested"):
            row[f"{protocol}_{key}"] = result.get(key)
    for key in _spread_keys(row):
        row[f"{key}_sd"] = None
    return row


def _spread_keys(row: Row) -> list[str]:
    rates = [key for key in row if key.endswith(("_top1", "_floor"))]
    return [*rates, "seconds", "view_passes", "compute"]


def _mean_row(group: Sequence[Row]) -> Row:
    """Mean and sample sd; None where a run lacks the number or was measured otherwise."""
    names = list(dict.fromkeys(row["name"].split(" (seed ")[0] for row in group))
    row = {**group[0], "kind": "mean", "path": None, "seed": None, "n": len(group)}
    row["name"] = f"{', '.join(names)}: mean ± sd of {len(group)} seeds"
    for key in _spread_keys(group[0]):
        values = [member[key] for member in group]
        protocol = key.rpartition("_")[0]
        measured = {(m.get(f"{protocol}_labels"), m.get(f"{protocol}_tested")) for m in group}
        known = None not in values and len(measured) == 1
        row[key], row[f"{key}_sd"] = (fmean(values), stdev(values)) if known else (None, None)
    return row


def _floor_rows(single: Sequence[Row], runs: Sequence[Run]) -> list[Row]:
    """The random encoder under the same probes: one row per encoder and evaluation."""
    groups: dict[str, list[Row]] = {}
    for row, run in zip(single, runs, strict=True):
        if any(row[key] is not None for key in row if key.endswith("_floor")):
            sizes = [row[k] for k in row if k.endswith(("_labels", "_tested"))]
            source = run.evaluation.get("source")
            key = json.dumps([row["encoder"], row["width"], source, sizes])
            groups.setdefault(key, []).append(row)
    return [_floor_row(group) for group in groups.values()]


def _floor_row(group: Sequence[Row]) -> Row:
    row: Row = dict.fromkeys(group[0])
    row |= {"kind": "floor", "name": "random encoder (the floor)", "n": len(group)}
    row |= {key: group[0][key] for key in ("encoder", "width")}
    for key in [key for key in row if key.endswith(("_labels", "_tested"))]:
        row[key] = group[0][key]
    for key in [key for key in row if key.endswith("_floor")]:
        # runs of one seed share their random encoder: it counts once
        values = sorted({member[key] for member in group if member[key] is not None})
        top1 = key.replace("_floor", "_top1")
        row[top1] = fmean(values) if values else None
        row[f"{top1}_sd"] = stdev(values) if len(values) > 1 else None
    return row
