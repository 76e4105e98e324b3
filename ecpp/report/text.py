"""Numbers and values as people read them."""

from __future__ import annotations

import json

MISSING = "—"


def percent(value: float | None, sd: float | None = None) -> str:
    if value is None:
        return MISSING
    return f"{100 * value:.1f} %" if sd is None else f"{100 * value:.1f} ± {100 * sd:.1f} %"


def count(value: float | None, sd: float | None = None) -> str:
    """`9,600`, `12.3 M`; the spread is left out where there is none."""
    if value is None:
        return MISSING
    spread = f" ± {_short(sd)}" if sd else ""
    return _short(value) + spread


def duration(value: float | None, sd: float | None = None) -> str:
    """`42 s`, `4 min 12 s`, `1 h 03 min`, `2 d 4 h`."""
    if value is None:
        return MISSING
    spread = f" ± {_span(sd)}" if sd else ""
    return _span(value) + spread


def value_text(value: object) -> str:
    """A config value: strings bare, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: float) -> str:
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= unit:
            return f"{value / unit:.3g} {letter}" if value < 1000 * unit else f"{value:.2e}"
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:,.1f}"


def _span(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"
