"""Every protocol's number side by side: one row per protocol, one column per run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean, stdev

from ecpp.report import text
from ecpp.report.read import Record, Run
from ecpp.report.table import NAMES, headline, protocols, seed_groups

HEADS = ("protocol", "top-1", "top-5", "best by test", "floor", "labels", "took")


def protocol_rows(run: Run) -> list[list[str]]:
    """What each protocol found of one run, for a console."""
    return [[str(r["protocol"]), *_values(r)] for r in run.results]


def _values(r: Record) -> list[str]:
    return [
        text.percent(r["top1"]),
        text.percent(r.get("top5")),
        best_text(r),
        text.percent(r.get("floor")),
        text.count(r.get("labels")),
        text.duration(r.get("seconds")),
    ]


def best_text(result: Record) -> str:
    """The epoch that the test images would choose: never the headline."""
    best = result.get("best_by_test")
    return f"{text.percent(best['top1'])} at {best['epoch']}" if isinstance(best, dict) else text.MISSING


def weakest_text(result: Record, count: int = 3) -> str:
    """The classes that a protocol knows least."""
    rates = result.get("per_class")
    if not isinstance(rates, dict):
        return text.MISSING
    known = sorted((rate, name) for name, rate in rates.items() if rate is not None)
    return ", ".join(f"{name} {text.percent(rate)}" for rate, name in known[:count]) or text.MISSING


def protocol_table(runs: Sequence[Run]) -> str:
    """Shown where there is more than the headline table has."""
    names = [name for name in protocols(runs) if any(headline(run, name) for run in runs)]
    if not set(names) - set(NAMES):
        return ""
    groups = [[run] for run in runs] + seed_groups(runs)
    titles = [run.label for run in runs] + [
        f"{group[0].label.split(' (seed ')[0]}: mean ± sd of {len(group)} seeds"
        for group in seed_groups(runs)
    ]
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in ("protocol", "labels", *titles))
    body = ""
    for name in names:
        labels = dict.fromkeys(headline(run, name).get("labels") for run in runs)
        numbers = " / ".join(text.count(n) for n in labels if n is not None)
        cells = "".join(_cell([headline(run, name) for run in group]) for group in groups)
        body += f'<tr><th scope="row">{escape(name)}</th><td>{numbers}</td>{cells}</tr>\n'
    return (
        f'<h2>Protocols</h2><div class="card wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(results: Sequence[Record]) -> str:
    """Top-1 of the last epoch, with the random encoder's beneath; a mean needs every run, measured alike."""
    measured = {(r.get("labels"), r.get("tested"), r.get("source")) for r in results}
    if not all(results) or len(measured) > 1:
        return f'<td class="none">{text.MISSING}</td>'
    top1, floor = _mean([r["top1"] for r in results]), _mean([r.get("floor") for r in results])
    beneath = "" if floor == text.MISSING else f"<small>floor {floor}</small>"
    return f'<td class="top1">{top1}{beneath}</td>'


def _mean(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return text.MISSING
    return text.percent(fmean(known), stdev(known) if len(known) > 1 else None)
