"""One self-contained HTML file that compares runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ecpp.report import sections
from ecpp.report.health import health_table
from ecpp.report.protocols import protocol_table
from ecpp.report.read import Run, read_runs
from ecpp.report.style import CSS

# The browser itself refuses whatever the page might still try to load.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(runs: Sequence[Path], out: Path, *, title: str = "ecpp report", intro: str = "") -> Path:
    """Writes the page to `out`, or to `out/report.html` where `out` is a folder."""
    records = read_runs(runs)
    out = Path(out)
    out = out / "report.html" if out.is_dir() else out
    html = _page(records, title, intro)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html, encoding="utf-8")
    return out


def _page(runs: Sequence[Run], title: str, intro: str) -> str:
    parts = [
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="intro">{escape(intro)}</p>' if intro else "",
        "</header>",
        sections.headline_table(runs),
        protocol_table(runs),
        sections.protocol_notes(runs),
        sections.curves_section(runs),
        health_table(runs),
        sections.pair_maps(runs),
        sections.pictures(runs),
        sections.differences(runs),
        sections.all_details(runs),
        "<footer>Made from run.json, metrics.jsonl, evaluation.json and the pictures in ",
        escape(", ".join(str(run.path) for run in runs)),
        ".</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )
