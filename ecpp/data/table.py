"""A folder whose labels.csv names each image, its class and, if it likes, its split."""

import csv
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ecpp.data.folder import TABLE, Folder, unused, walk
from ecpp.data.names import printable
from ecpp.data.source import HELD_OUT, Splits, check_classes

_FILE_COLUMNS = ("file", "filename", "file_name", "path", "image")
_LABEL_COLUMNS = ("label", "class", "target")
_TRAIN = ("train", "training", "")  # what the column of splits may say of images to learn from


class Row(NamedTuple):
    """A line of the table."""

    file: bytes
    label: str
    split: str


def open_table(root: Path, *, channels: int = 3) -> Splits:
    """The images that the table names, with its classes; held out is one split, the best of `HELD_OUT`."""
    rows = _read(root / TABLE)
    on_disk, left_out = walk(root)
    left_out[".csv"] -= 1
    _check_files(root, rows, set(on_disk))
    splits = {row.split for row in rows}
    held_out = [split for split in HELD_OUT if split in splits]
    train = _side(root, [row for row in rows if row.split in _TRAIN], channels)
    test = _side(root, [row for row in rows if row.split in held_out[:1]], channels)
    if train is None:
        raise ValueError(
            f"{root / TABLE} holds no images to train on: each is in a split of {', '.join(held_out)}"
        )
    if test is not None:
        check_classes(train, test)
    notes = unused(root, held_out[1:])
    unnamed = len(on_disk) - len(rows)
    if unnamed:
        notes += (f"left out in {root}, as {TABLE} does not name them: {unnamed:,} images",)
    train.left_out = +left_out
    return Splits(train, test, (*notes, *train.notes()))


def _side(root: Path, rows: list[Row], channels: int) -> Folder | None:
    rows = sorted(rows)
    if not rows:
        return None
    return Folder(root, channels=channels, files=[r.file for r in rows], labels=[r.label for r in rows])


def _check_files(root: Path, rows: list[Row], on_disk: set[bytes]) -> None:
    absent = sorted(row.file for row in rows if row.file not in on_disk)
    if not absent:
        return
    first = absent[0]
    if os.path.isfile(os.path.join(os.fsencode(root), first)):
        raise ValueError(
            f"{root / TABLE} names {printable(first)}, which is hidden or does not end like an image: rename it, "
            "or take its line out"
        )
    raise ValueError(
        f"{root / TABLE} names {len(absent):,} images that are not there, such as {printable(first)}: "
        "it should give their paths relative to its own folder"
    )


def _read(table: Path) -> list[Row]:
    with open(table, newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file)
            columns = {(c or "").strip().lower(): c for c in reader.fieldnames or ()}
            lines = [(reader.line_num, row) for row in reader]
        except (csv.Error, UnicodeDecodeError) as e:
            raise ValueError(f"{table} is no table of comma-separated values in UTF-8: {e}") from e
    names = [columns[c] for c in _FILE_COLUMNS if c in columns]
    labels = [columns[c] for c in _LABEL_COLUMNS if c in columns]
    if not names or not labels:
        raise ValueError(
            f"the first line of {table} must name a column for the file ({', '.join(_FILE_COLUMNS)}) and one for the "
            f"class ({', '.join(_LABEL_COLUMNS)}), and may name one for the split; it names "
            f"{', '.join(columns) or 'none'}"
        )
    if not lines:
        raise ValueError(f"{table} names no images: it should have a line for each")
    rows = []
    for number, row in lines:
        cells = [(row.get(c) or "").strip() for c in (names[0], labels[0], columns.get("split", ""))]
        rows.append(_row(table, number, cells))
    twice = next((f for f, n in Counter(row.file for row in rows).items() if n > 1), None)
    if twice is not None:
        raise ValueError(f"{table} names {printable(twice)} more than once")
    return rows


def _row(table: Path, number: int, cells: list[str]) -> Row:
    name, label, split = cells
    split = split.lower()
    if not name or not label:
        raise ValueError(f"line {number} of {table} lacks its file or its class")
    if split not in (*_TRAIN, *HELD_OUT):
        known = ", ".join(("train", *HELD_OUT))
        raise ValueError(f"line {number} of {table} names the split {split!r}: use one of {known}, or none")
    return Row(os.fsencode(os.path.normpath(name).replace(os.sep, "/")), label, split)
