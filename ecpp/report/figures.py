"""Curves as inline SVG, written by hand: small, crisp, and dark where the page is dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

# Fallbacks for a drawing outside the page, whose style sheet sets --c0 … --c7 (light and dark).
COLOURS = ("#2563c9", "#c8442f", "#14865a", "#b26a00", "#7a4cc2", "#0b8496", "#bd4682", "#657083")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "13 4")
WIDTH, PLOT_HEIGHT = 460.0, 250.0
LEFT, RIGHT, TOP = 66.0, 26.0, 16.0
LEGEND_LINE, LEGEND_CHARACTER, LEGEND_SWATCH = 19.0, 6.6, 34.0


@dataclass(frozen=True)
class Series:
    label: str
    points: Sequence[tuple[float, float]]
    colour: int | None = None  # None: by its place among the series
    dash: int | None = None


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]


def curves(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    whole_x: bool = False,
    y_limits: tuple[float, float] = (-math.inf, math.inf),
    legend: bool = True,
) -> str:
    """One chart. Lines break at values that are not finite; a lone point is drawn as a point.

    `y_limits` are bounds that the axis may not pass (0 and 100 for a percentage).
    """
    finite = [p for one in series for p in one.points if math.isfinite(p[0] + p[1])]
    if not finite:
        raise ValueError(f"chart {title!r} has no finite point: leave it out")
    x = axis(0.0, max(p[0] for p in finite), whole=whole_x)
    y = axis(min(p[1] for p in finite), max(p[1] for p in finite), limits=y_limits)
    right, bottom = WIDTH - RIGHT, TOP + PLOT_HEIGHT

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x.low) / (x.high - x.low)
        up = (point[1] - y.low) / (y.high - y.low)
        return LEFT + across * (right - LEFT), bottom - up * PLOT_HEIGHT

    key, key_height = _legend(series, bottom + 52) if legend else ("", 0.0)
    height = bottom + 44 + key_height
    lines = "".join(_line(one, i, place) for i, one in enumerate(series))
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{_frame(x, y, place)}"
        f'<text class="name" x="{(LEFT + right) / 2:.1f}" y="{bottom + 37:.1f}"'
        f' text-anchor="middle">{escape(x_label)}</text>'
        f'<text class="name" transform="translate(12 {TOP + PLOT_HEIGHT / 2:.1f}) rotate(-90)"'
        f' text-anchor="middle">{escape(y_label)}</text>'
        f"{lines}{key}</svg>"
    )


def axis(
    low: float,
    high: float,
    *,
    whole: bool = False,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Axis:
    """Bounds on round ticks that hold [low, high], also where the two are the same."""
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
        if low < 0 <= high - pad:
            low = 0.0
    step = _round_step((high - low) / 5)
    step = max(1.0, math.ceil(step)) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [n * step for n in range(first, last + 1) if limits[0] <= n * step <= limits[1]]
    return Axis(max(first * step, limits[0]), min(last * step, limits[1]), tuple(ticks))


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """As many decimals as the step needs, and thousands apart."""
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    if not 1e-4 <= step < 1e8:
        digits = 2 + math.ceil(math.log10(max(map(abs, ticks)) / step))
        return [f"{tick:.{digits}g}" for tick in ticks]
    decimals = next((d for d in range(7) if abs(round(step, d) - step) < 1e-6 * step), 7)
    return [f"{tick:,.{decimals}f}".replace("-", "−") for tick in ticks]


def _round_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * (1 - 1e-9))


def _frame(x: Axis, y: Axis, place: Callable[[tuple[float, float]], tuple[float, float]]) -> str:
    parts = []
    for tick, label in zip(y.ticks, tick_texts(y.ticks), strict=True):
        left, at = place((x.low, tick))
        parts.append(f'<path class="grid" d="M{left:.1f} {at:.1f}H{WIDTH - RIGHT:.1f}"/>')
        parts.append(f'<text x="{left - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for tick, label in zip(x.ticks, tick_texts(x.ticks), strict=True):
        at, bottom = place((tick, y.low))
        parts.append(f'<path class="axis" d="M{at:.1f} {bottom:.1f}v4"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{label}</text>')
    left, bottom = place((x.low, y.low))
    return f'{"".join(parts)}<path class="axis" d="M{left:.1f} {bottom:.1f}H{WIDTH - RIGHT:.1f}"/>'


def _style(one: Series, index: int) -> tuple[str, str]:
    colour = (index if one.colour is None else one.colour) % len(COLOURS)
    dash = DASHES[(index if one.dash is None else one.dash) % len(DASHES)]
    return f"var(--c{colour},{COLOURS[colour]})", dash


def _line(one: Series, index: int, place: Callable[[tuple[float, float]], tuple[float, float]]) -> str:
    colour, dash = _style(one, index)
    stretches: list[list[tuple[float, float]]] = [[]]
    for point in one.points:
        if math.isfinite(point[0] + point[1]):
            stretches[-1].append(point)
        elif stretches[-1]:
            stretches.append([])
    path = "".join(
        "M" + "L".join("{:.1f} {:.1f}".format(*place(p)) for p in stretch)
        for stretch in stretches
        if len(stretch) > 1
    )
    drawn = [point for stretch in stretches for point in stretch]
    few = len(drawn) <= 25 or not path
    # a lone point between two gaps has no line: it would vanish without its dot
    dotted = drawn if few else [s[0] for s in stretches if len(s) == 1]
    dots = "".join(_dot(one.label, point, place(point), colour) for point in dotted)
    many = " many" if len(drawn) > 100 else ""
    line = f'<path class="line{many}" d="{path}" style="stroke:{colour}" stroke-dasharray="{dash}"/>'
    return (line if path else "") + dots


def _dot(label: str, point: tuple[float, float], at: tuple[float, float], colour: str) -> str:
    return (
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2.8" style="fill:{colour}">'
        f"<title>{escape(label)}: {point[1]:,.4g} at {point[0]:,.6g}</title></circle>"
    )


def _legend(series: Sequence[Series], top: float) -> tuple[str, float]:
    """Swatch and name, wrapped into lines; a long name loses its middle, and is kept whole as a tooltip."""
    parts: list[str] = []
    x, y = LEFT, top
    for index, one in enumerate(series):
        label = one.label if len(one.label) <= 48 else f"{one.label[:23]}…{one.label[-23:]}"
        room = LEGEND_SWATCH + LEGEND_CHARACTER * len(label) + 14
        if x > LEFT and x + room > WIDTH:
            x, y = LEFT, y + LEGEND_LINE
        colour, dash = _style(one, index)
        parts.append(
            f'<path class="line" d="M{x:.1f} {y:.1f}h26" style="stroke:{colour}"'
            f' stroke-dasharray="{dash}"/><text class="key" x="{x + LEGEND_SWATCH:.1f}"'
            f' y="{y + 4:.1f}">{escape(label)}<title>{escape(one.label)}</title></text>'
        )
        x += room
    return "".join(parts), y + LEGEND_LINE - top
