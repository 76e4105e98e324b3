"""Whether runs learn, measured without labels, as a table of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ecpp.report import text
from ecpp.report.read import Run, is_number

MEASURES = {
    "rankme": "effective rank",
    "alpha": "decay of the spectrum",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "std": "spread of the embeddings",
}


def health_table(runs: Sequence[Run]) -> str:
    """The last verdict on each run, and what it rests on; runs without any are left out."""
    body = ""
    for run in runs:
        judged = [epoch for epoch in run.epochs if "verdict" in epoch]
        if judged:
            last = judged[-1]
            values = (f"{last[m]:.3g}" if is_number(last.get(m)) else text.MISSING for m in MEASURES)
            cells = "".join(f"<td>{value}</td>" for value in values)
            body += f'<tr><th scope="row">{escape(run.label)}</th><td>{escape(str(last["verdict"]))}</td>{cells}</tr>\n'
    if not body:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("run", "verdict", *MEASURES.values()))
    return (
        f'<h2>Is it learning?</h2><div class="card wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>'
        "</table></div><p>After the last epoch, without labels, on the same two views of up to 1,024 held-out "
        "images.</p>"
    )
