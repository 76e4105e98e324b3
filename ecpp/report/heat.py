"""Heat maps of what the pairs of views cost and how alike they are, the views in groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import NamedTuple

from ecpp.report.read import Record, Run, is_number

Matrix = Sequence[Sequence[float]]
CELL, GAP, LABEL, TOP = 44.0, 5.0, 78.0, 22.0
MOST_WRITTEN = 12  # views: the numbers of more would not be legible
MAPS = (
    ("pair_loss", "Loss of each pair", "What each pair of views adds to the summed loss"),
    ("pair_similarity", "Similarity of each pair", "Mean cosine of the two views of an image"),
)


class Heat(NamedTuple):
    title: str
    svg: str
    caption: str


def heats(run: Run) -> list[Heat]:
    """The maps of the last step that logged them; none for a run without, or for one pair alone."""
    groups = view_groups(run.plan["views"])
    if len(groups) == 2:
        return []
    drawn = []
    for key, title, what in MAPS:
        found = [r for r in run.steps if _is_matrix(r.get(key), len(groups))]
        if not found:
            continue
        values = {
            (i, j): float(found[-1][key][i][j])
            for i in range(len(groups))
            for j in range(len(groups))
            if i != j and (key != "pair_loss" or found[-1][key][i][j] != 0)  # 0: a pair that does not teach
        }
        if not values:
            continue
        caption = f"{what}, at step {found[-1]['step']:,}. Means: {_means(values, groups)}."
        if len(values) < len(groups) * (len(groups) - 1):
            caption += " Blank pairs do not teach."
        drawn.append(Heat(title, heat_map(values, groups, f"{title}, {run.label}"), caption))
    return drawn


def view_groups(views: Sequence[Record]) -> list[str]:
    """large, small or crop-only, for each view of a plan."""
    largest = max(v.get("size") or 0 for v in views)
    return [
        "crop-only" if v.get("kind") == "crop-only" else "large" if v.get("size") == largest else "small"
        for v in views
    ]


def _is_matrix(value: object, k: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == k
        and all(isinstance(row, list) and len(row) == k and all(map(is_number, row)) for row in value)
    )


def _short(value: float) -> str:
    """Three digits, zeros kept, so that a column of them lines up."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".replace("-", "−")


def _means(values: dict[tuple[int, int], float], groups: Sequence[str]) -> str:
    """`large–large 4.31, large–small 4.52, crop-only 4.1`: the last is every pair with a crop-only view."""
    found: dict[str, list[float]] = {}
    for (i, j), value in values.items():
        pair = sorted({groups[i], groups[j]})
        name = "with a crop-only view" if "crop-only" in pair else f"{pair[0]}–{pair[-1]}"
        found.setdefault(name, []).append(value)
    return ", ".join(f"{name} {_short(fmean(v))}" for name, v in found.items())


def heat_map(values: dict[tuple[int, int], float], groups: Sequence[str], title: str) -> str:
    """A K×K grid, blank where there is no value; a gap and a name for each run of views of one group."""
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    finite = [v for v in values.values() if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)

    def at(i: int) -> float:
        return i * CELL + GAP * sum(i >= s for s in starts)

    parts = []
    for (i, j), value in values.items():
        weight = 0.0 if not math.isfinite(value) else 0.5 if high == low else (value - low) / (high - low)
        x, y = LABEL + at(j), TOP + at(i)
        bold = " strong" if weight > 0.78 else ""  # at least 3:1 against ink or card, light or dark
        written = "" if len(groups) > MOST_WRITTEN else _short(value)
        parts.append(
            f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{CELL - 2}" height="{CELL - 2}" rx="3"'
            f' style="fill-opacity:{0.06 + 0.84 * weight:.2f}"><title>views {i + 1} and {j + 1}: {value:.4g}'
            f'</title></rect><text class="heat{bold}" x="{x + CELL / 2 - 1:.1f}" y="{y + CELL / 2 + 3:.1f}"'
            f' text-anchor="middle">{written}</text>'
        )
    for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
        middle = (at(start) + at(end - 1) + CELL) / 2
        name = escape(groups[start])
        parts.append(f'<text class="name" x="{LABEL + middle:.1f}" y="14" text-anchor="middle">{name}</text>')
        parts.append(
            f'<text class="name" x="{LABEL - 6:.1f}" y="{TOP + middle + 4:.1f}" text-anchor="end">{name}</text>'
        )
    side = at(len(groups) - 1) + CELL
    return (
        f'<svg viewBox="0 0 {LABEL + side + 4:.0f} {TOP + side + 4:.0f}" role="img" aria-label="{escape(title)}"'
        f' style="max-width:{LABEL + side + 4:.0f}px">{"".join(parts)}</svg>'
    )
