"""Labelled grids of pictures, such as the K views of some images."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Array = np.ndarray[Any, Any]
Grid = list[list[Image.Image]]
Font = ImageFont.ImageFont | ImageFont.FreeTypeFont

GAP, MARGIN, LINE, TITLE = 8, 16, 17, 30
INK, SOFT, PAPER = (28, 33, 39), (92, 102, 112), (255, 255, 255)
# Pillow's own font lacks these; accents go by decomposition, whatever is left becomes "?".
SPELT = str.maketrans({"×": "x", "–": "-", "—": "-", "−": "-", "→": "->", "≥": ">=", "≤": "<="})


def picture_grid(
    rows: Sequence[Sequence[Array]],
    out: Path,
    *,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    title: str | None = None,
    cell: int = 96,
    proportional: bool = True,
) -> Path:
    """Draws uint8 (H, W), (H, W, 1) or (H, W, 3) arrays; a row may be shorter than others.

    `proportional` draws all at one scale, so that a 20-px view looks smaller than a 32-px one.
    """
    _check_labels(rows, row_labels, column_labels, cell)
    grid = _scaled_grid(rows, cell, proportional)
    font, bold = ImageFont.load_default(size=13), ImageFont.load_default(size=17)
    side = max(max(picture.size) for row in grid for picture in row)
    heads = [_wrap(_plain(label), font, side) for label in column_labels or ()]
    names = [_plain(label) for label in row_labels or ()]
    pitch = GAP + max([side, *(_width(head, font) for head in heads)])

    left = MARGIN + (max(_width(name, font) for name in names) + 12 if names else 0)
    head_lines = max((head.count("\n") + 1 for head in heads), default=0)
    head_top = MARGIN + (TITLE if title else 0)
    top = head_top + (head_lines * LINE + 6 if heads else 0)
    tall = [max(p.height for p in row) for row in grid]
    if names:
        tall = [max(t, LINE * (n.count("\n") + 1)) for t, n in zip(tall, names, strict=True)]
    tops = list(accumulate((t + GAP for t in tall), initial=top))
    width = left + pitch * max(map(len, grid)) - GAP + MARGIN
    if title:
        width = max(width, _width(_plain(title), bold) + 2 * MARGIN)

    sheet = Image.new("RGB", (width, tops[-1] - GAP + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), _plain(title or ""), INK, bold, anchor="lt")
    for column, head in enumerate(heads):
        _draw_head(draw, head, left + column * pitch + (pitch - GAP) // 2, top - 9, font)
    for name, y, height in zip(names, tops, tall, strict=False):
        at = (left - 12, y + height / 2)
        draw.multiline_text(at, name, INK, font, anchor="rm", align="right")
    for row, pictures in enumerate(grid):
        for column, picture in enumerate(pictures):
            x = left + column * pitch + (pitch - GAP - picture.width) // 2
            sheet.paste(picture, (x, tops[row] + (tall[row] - picture.height) // 2))
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, format="PNG", optimize=True)
    return out


def _draw_head(draw: ImageDraw.ImageDraw, head: str, middle: int, bottom: int, font: Font) -> None:
    """Heads stand on one line, however many lines each has."""
    for up, line in enumerate(reversed(head.split("\n"))):
        draw.text((middle, bottom - up * LINE), line, SOFT, font, anchor="ms")


def _check_labels(
    rows: Sequence[Sequence[Array]],
    row_labels: Sequence[str] | None,
    column_labels: Sequence[str] | None,
    cell: int,
) -> None:
    if not rows or not all(len(row) for row in rows):
        raise ValueError("picture_grid needs at least one row, and a picture in every row")
    if cell < 1:
        raise ValueError(f"cell is the side of the largest picture in pixels, got {cell}")
    for what, labels, needed in (
        ("row_labels", row_labels, len(rows)),
        ("column_labels", column_labels, max(len(row) for row in rows)),
    ):
        if labels is not None and len(labels) != needed:
            raise ValueError(f"{what} should hold {needed} strings, got {len(labels)}")


def _scaled_grid(rows: Sequence[Sequence[Array]], cell: int, proportional: bool) -> Grid:
    grid = [
        [_picture(array, f"row {i}, column {j}") for j, array in enumerate(row)] for i, row in enumerate(rows)
    ]
    longest = max(max(picture.size) for row in grid for picture in row)
    return [[_resize(p, longest if proportional else max(p.size), cell) for p in r] for r in grid]


def _picture(array: Array, where: str) -> Image.Image:
    if array.dtype != np.uint8 or array.size == 0:
        raise ValueError(
            f"{where}: uint8 arrays are drawn, got {array.dtype} of shape {array.shape};"
            " scale to 0..255 first"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] == 3):
        raise ValueError(f"{where}: expected (H, W), (H, W, 1) or (H, W, 3), got {array.shape}")
    return Image.fromarray(np.ascontiguousarray(array)).convert("RGB")


def _resize(picture: Image.Image, reference: int, cell: int) -> Image.Image:
    """Scales by cell / reference; twofold and more by whole pixels, which keeps them square."""
    scale = cell / reference
    scale = float(int(scale)) if scale >= 2 else scale
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.BOX)


def _plain(label: str) -> str:
    flat = unicodedata.normalize("NFKD", label.translate(SPELT))
    kept = "".join(c for c in flat if not unicodedata.combining(c))
    return "".join(c if c == "\n" or " " <= c <= "~" else "?" for c in kept)


def _wrap(label: str, font: Font, width: int) -> str:
    """Breaks between words; a single word may be wider than the column, which then widens."""
    lines: list[str] = []
    for paragraph in label.split("\n"):
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            if line and font.getlength(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return "\n".join(lines)


def _width(block: str, font: Font) -> int:
    return max(int(font.getlength(line)) + 1 for line in block.split("\n"))
