"""A run folder, read and checked; every complaint names the file and what to do."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    path: Path
    label: str  # unique among the runs read together
    config: Record
    resolved: Record
    plan: Record
    environment: Record
    command: str
    steps: tuple[Record, ...]  # one per logged step, ascending
    epochs: tuple[Record, ...]  # one per epoch, ascending
    evaluation: Record  # {} before the run is evaluated
    curve: tuple[Record, ...] = ()  # the linear accuracy of every kept epoch, ascending
    curve_floor: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the run did: the user's config with the data-dependent values filled in."""
        return {**self.config, **self.resolved}

    @property
    def n_views(self) -> int:
        return len(self.plan["views"])

    @property
    def results(self) -> Sequence[Record]:
        results: Sequence[Record] = self.evaluation.get("results", ())
        return results

    def last(self, key: str) -> float | None:
        """The newest logged value of a running total such as `seconds`."""
        values = [float(r[key]) for r in (*self.steps, *self.epochs) if is_number(r.get(key))]
        return max(values, default=None)

    def plan_text(self) -> str:
        """`2 × 32 px SimCLR, 4 × 20 px crop-only`"""
        kinds = groupby((v.get("size"), v.get("kind")) for v in self.plan["views"])
        return ", ".join(f"{len(list(g))} × {size} px {kind}" for (size, kind), g in kinds)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Reads run folders and gives each a label of its own: name, then epochs, then seed, then folder."""
    paths = [Path(path) for path in paths]
    if not paths:
        raise ValueError("no run folder was given: name at least one folder that holds a run.json")
    twice = [path for path, n in Counter(p.resolve() for p in paths).items() if n > 1]
    if twice:
        raise ValueError(f"{twice[0]} was given twice: name every run folder once")
    heads = [_read_head(path / "run.json") for path in paths]
    names = [str(head["name"]) for head in heads]
    extras = (
        [f", {h['resolved'].get('epochs')} epochs" for h in heads],
        [f" (seed {h['resolved'].get('seed')})" for h in heads],
        [f" [{path}]" for path in paths],
    )
    for extra in extras:  # said only where it tells runs of one name apart
        told: defaultdict[str, set[str]] = defaultdict(set)
        for name, e in zip(names, extra, strict=True):
            told[name].add(e)
        names = [n + e if len(told[n]) > 1 else n for n, e in zip(names, extra, strict=True)]
    return [_read_run(*triple) for triple in zip(paths, names, heads, strict=True)]


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_run(path: Path, label: str, head: Record) -> Run:
    records = _newest(_read_lines(path / "metrics.jsonl"), path)
    curve, floor = _read_curve(path / "curve.json")
    return Run(
        path=path,
        label=label,
        config=head["config"],
        resolved=head["resolved"],
        plan=head["plan"],
        environment=head["environment"],
        command=str(head.get("command", "")),
        steps=tuple(r for r in records if r["kind"] == "step"),
        epochs=tuple(r for r in records if r["kind"] == "epoch"),
        evaluation=_read_evaluation(path / "evaluation.json"),
        curve=curve,
        curve_floor=floor,
    )


def _read_head(file: Path) -> Record:
    if not file.parent.is_dir():
        raise FileNotFoundError(f"{file.parent} is not a folder: give the folder of a run")
    if not file.is_file():
        raise FileNotFoundError(
            f"{file.parent} holds no run.json, so it is not a run folder: give a folder that"
            " `ecpp pretrain` has written"
        )
    head = _object(file.read_bytes(), str(file))
    for key in ("config", "resolved", "plan", "environment"):
        if not isinstance(head.get(key), dict):
            raise ValueError(f"{file}: {key!r} should be an object, got {head.get(key)!r}")
    views = head["plan"].get("views")
    if "name" not in head or not isinstance(views, list) or not views:
        raise ValueError(f"{file}: 'name' and a non-empty list 'plan.views' are needed")
    if not all(isinstance(view, dict) for view in views):
        raise ValueError(f"{file}: 'plan.views' should hold objects, got {views!r}")
    return head


def _read_evaluation(file: Path) -> Record:
    if not file.is_file():
        return {}
    evaluation = _object(file.read_bytes(), str(file))
    results = evaluation.get("results")
    if not isinstance(results, list) or not all(isinstance(r, dict) for r in results):
        raise ValueError(f"{file}: 'results' should be a list of objects; evaluate the run again")
    for result in results:
        rates = [result.get("top1"), result["floor"] if result.get("floor") is not None else 0]
        if "protocol" not in result or not all(is_number(r) and 0 <= r <= 1 for r in rates):
            raise ValueError(
                f"{file}: a result needs a 'protocol', and 'top1' and 'floor' between 0 and 1,"
                f" got {result!r}; evaluate the run again"
            )
    return evaluation


def _read_curve(file: Path) -> tuple[tuple[Record, ...], float | None]:
    if not file.is_file():
        return (), None
    curve = _object(file.read_bytes(), str(file))
    points, floor = curve.get("points"), curve.get("floor")
    if not isinstance(points, list) or not all(
        isinstance(p, dict) and is_number(p.get("top1")) for p in points
    ):
        raise ValueError(f"{file}: 'points' should be a list of objects with a 'top1'; draw the curve again")
    return tuple(points), float(floor) if is_number(floor) and floor is not None else None


def _read_lines(file: Path) -> list[Record]:
    """All complete lines: a last one without its newline may still be in the writing."""
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing: leave this run out, or wait until its training has begun"
        )
    *lines, tail = file.read_bytes().split(b"\n")
    records: list[Record] = [
        _object(line, f"{file}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if tail.strip().endswith(b"}"):  # an object that is closed is whole
        records.append(_object(tail, f"{file}, last line"))
    return records


def _newest(records: Sequence[Record], path: Path) -> list[Record]:
    """What holds after resuming: a line undoes all that was logged of its step and later."""
    kept: dict[tuple[float, str], Record] = {}
    for record in records:
        kind = record.get("kind")
        if kind not in ("step", "epoch"):
            continue
        if not is_number(record.get("step")) or not is_number(record.get(kind)):
            raise ValueError(f"{path / 'metrics.jsonl'}: a line lacks 'step' or {kind!r}: {record!r}")
        while kept and next(reversed(kept))[0] > record["step"]:
            kept.popitem()
        kept[record["step"], kind] = record
    return list(kept.values())


def _object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{where} is not valid JSON ({error}): mend the file, or leave this run out"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} should be a JSON object, got {type(value).__name__}")
    return value
