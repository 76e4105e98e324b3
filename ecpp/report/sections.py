"""The parts of the page, each from runs to HTML; whatever came from a file is escaped."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from ecpp.report import text
from ecpp.report.charts import charts
from ecpp.report.heat import heats
from ecpp.report.protocols import best_text, weakest_text
from ecpp.report.read import Record, Run
from ecpp.report.table import NAMES, cells, columns, headline, protocols, rows, seed_groups

PICTURES = (
    ("views.png", "views", "What the encoder is shown: {plan}."),
    ("neighbours.png", "neighbours", "Nearest neighbours of some images, before and after training."),
)


def headline_table(runs: Sequence[Run]) -> str:
    """Columns without a single value are left out; a floor stands beneath its accuracy."""
    table = rows(runs)
    shown = columns(table)
    always = {f"{protocol}_top1" for protocol in NAMES}
    shown = [c for c in shown if c.key in always or any(c.show(row) != text.MISSING for row in table)]
    measured = [column for column in shown if not column.key.endswith("_floor")]
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in measured)
    body = ""
    for row in table:
        value = dict(zip([column.key for column in shown], cells(row, shown), strict=True))
        plan = f"<small>{escape(row['plan'])}</small>" if row["kind"] == "run" else ""
        body += f'<tr class="{row["kind"]}"><th scope="row">{escape(value["name"])}{plan}</th>'
        for key in [column.key for column in measured[1:]]:
            floor = value.get(key.replace("_top1", "_floor"), text.MISSING)
            under = floor not in (text.MISSING, value[key])
            beneath = f"<small>floor {escape(floor)}</small>" if under else ""
            kind = "none" if value[key] == text.MISSING else key.rpartition("_")[2]
            body += f'<td class="{escape(kind)}">{escape(value[key])}{beneath}</td>'
        body += "</tr>\n"
    return (
        f'<div class="card wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def protocol_notes(runs: Sequence[Run]) -> str:
    """How each number was measured: an accuracy never stands without it."""
    notes = [note for protocol in protocols(runs) for note in _protocol_note(runs, protocol)]
    if any(result.get("floor") is not None for run in runs for result in run.results):
        notes.append("<b>Floor:</b> a random encoder under the same probe.")
    notes.append(
        "<b>Wall time</b> is that of training alone. A <b>view pass</b> is one view of one image"
        " through the encoder; <b>compute</b> weighs each pass by the area of its view, in units"
        " of one pass of a large view."
    )
    if grouped := seed_groups(runs):
        sizes = " and ".join(str(len(group)) for group in grouped)
        notes.append(f"<b>±</b> is the sample standard deviation over seeds (n = {sizes}).")
    if len({run.environment.get("machine") for run in runs}) > 1:
        notes.append("The runs were made on <b>different machines</b>: wall times do not compare.")
    if missing := [run.label for run in runs if not run.results]:
        notes.append(f"Not evaluated yet (no evaluation.json): {escape(', '.join(missing))}.")
    return f'<ul class="notes">{"".join(f"<li>{note}</li>" for note in notes)}</ul>'


def _protocol_note(runs: Sequence[Run], protocol: str) -> list[str]:
    """One sentence per way of measuring; runs are named only where they were not measured alike."""
    measured: dict[str, list[str]] = {}
    evaluated = [run for run in runs if headline(run, protocol)]
    for run in evaluated:
        sentence = _how(run, headline(run, protocol))
        measured.setdefault(sentence, []).append(run.label)
    name = escape(NAMES.get(protocol, protocol))
    notes = []
    for sentence, who in measured.items():
        whose = f" ({escape(', '.join(who))})" if len(measured) > 1 else ""
        notes.append(f"<b>{name}{whose}:</b> {escape(sentence)}")
    return notes


def _how(run: Run, result: Record) -> str:
    tested, labels = result.get("tested"), result.get("labels")
    source = result.get("source") or run.evaluation.get("source")
    classes = len(result.get("per_class") or ()) or run.evaluation.get("classes")
    of = f" of {source}" if source else ""
    among = f" ({text.count(classes)} classes)" if classes else ""
    details = str(result.get("details") or "no details recorded").rstrip(".")
    return (
        f"top-1 accuracy on {text.count(tested)} images{of}{among},"
        f" learnt from {text.count(labels)} labelled images; {details}."
    )


def curves_section(runs: Sequence[Run]) -> str:
    drawn, absent = charts(runs)
    figures = "".join(
        f'<figure class="card"><h3>{escape(c.title)}</h3>{c.svg}'
        f"<figcaption>{escape(c.caption)}</figcaption></figure>\n"
        for c in drawn
    )
    missing = "".join(f"<li>{escape(sentence)}</li>" for sentence in absent)
    listed = f'<ul class="notes">{missing}</ul>' if missing else ""
    return f'<h2>Training</h2><div class="charts">{figures}</div>{listed}'


def pair_maps(runs: Sequence[Run]) -> str:
    """The heat maps of each run; a run whose metrics hold none is left out."""
    figures = "".join(
        f'<figure class="card"><h3>{escape(run.label)}: {escape(heat.title.lower())}</h3>{heat.svg}'
        f"<figcaption>{escape(heat.caption)}</figcaption></figure>\n"
        for run in runs
        for heat in heats(run)
    )
    return f'<h2>Pairs of views</h2><div class="charts">{figures}</div>' if figures else ""


def pictures(runs: Sequence[Run]) -> str:
    figures = "".join(
        f'<figure class="card"><h3>{escape(run.label)}: {what}</h3>{_image(run.path / name, run.label)}'
        f"<figcaption>{escape(caption.format(plan=run.plan_text()))}</figcaption></figure>\n"
        for run in runs
        for name, what, caption in PICTURES
        if (run.path / name).is_file()
    )
    return f'<h2>Pictures</h2><div class="pictures">{figures}</div>' if figures else ""


def _image(file: Path, label: str) -> str:
    raw = file.read_bytes()
    if raw[:8] != b"\x89PNG\r\n\x1a\n" or len(raw) < 24:
        raise ValueError(f"{file} is not a PNG: delete it, or draw it again")
    width, height = struct.unpack(">II", raw[16:24])  # known sizes keep the page from jumping
    return (
        f'<img alt="{escape(file.stem)} of {escape(label)}" width="{width}" height="{height}"'
        f' src="data:image/png;base64,{base64.b64encode(raw).decode()}">'
    )


def differences(runs: Sequence[Run]) -> str:
    """The settings, and the circumstances, in which these runs are not alike."""
    if len(runs) < 2:
        return ""
    differing = [
        *_differing([run.settings for run in runs], ""),
        *_differing([run.environment for run in runs], "environment: "),
    ]
    if not differing:
        return "<h2>What differs</h2><p>Nothing: settings and environment are the same.</p>"
    head = "".join(f'<th scope="col">{escape(run.label)}</th>' for run in runs)
    body = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f"<td>{escape(value)}</td>" for value in values)
        + "</tr>\n"
        for key, values in differing
    )
    return (
        '<h2>What differs</h2><div class="card wide"><table class="text">'
        f'<thead><tr><th scope="col">setting</th>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _differing(records: Sequence[Record], prefix: str) -> list[tuple[str, list[str]]]:
    keys = dict.fromkeys(key for record in records for key in record)
    found = [
        (prefix + key, [text.value_text(r[key]) if key in r else text.MISSING for r in records])
        for key in keys
    ]
    return [(key, values) for key, values in found if len(set(values)) > 1]


def all_details(runs: Sequence[Run]) -> str:
    return "<h2>Each run in full</h2>" + "".join(_details(run) for run in runs)


def _details(run: Run) -> str:
    results = "".join(
        f'<tr><th scope="row">{escape(str(r["protocol"]))}</th>'
        + "".join(
            f'<td class="tight">{escape(value)}</td>'
            for value in (
                text.percent(r["top1"]),
                text.percent(r.get("floor")),
                text.count(r.get("labels")),
                text.count(r.get("tested")),
                text.duration(r.get("seconds")),
                text.percent(r.get("top5")),
                best_text(r),
                weakest_text(r),
            )
        )
        + f"<td>{escape(str(r.get('details') or text.MISSING))}</td></tr>"
        for r in run.results
    )
    heads = (
        "protocol", "top-1", "floor", "labels", "tested", "took", "top-5", "best by test", "weakest classes",
        "details",
    )  # fmt: skip
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    table = f'<table class="text"><thead><tr>{head}</tr></thead><tbody>{results}</tbody></table>'
    evaluated = f'<h3>evaluation</h3><div class="wide">{table}</div>' if results else ""
    return (
        f'<details class="card"><summary>{escape(run.label)}'
        f"<span>{escape(run.plan_text())}</span></summary>"
        f"<h3>command</h3><pre>{escape(run.command or text.MISSING)}</pre>{evaluated}"
        f"<h3>settings, as resolved</h3>{_definitions(run.settings)}"
        f"<h3>environment</h3>{_definitions(run.environment)}</details>\n"
    )


def _definitions(record: Mapping[str, object]) -> str:
    pairs = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(text.value_text(value))}</dd></div>"
        for key, value in record.items()
    )
    return f"<dl>{pairs}</dl>"
