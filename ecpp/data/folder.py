"""Any folder of images: recursive, with or without class folders or a labels.csv, with or without splits."""

import csv
import os
from collections import Counter
from functools import cached_property
from pathlib import Path

from torch import Tensor

from ecpp.data.decode import Unreadable, decode
from ecpp.data.names import Names, printable
from ecpp.data.source import HELD_OUT, Decoded, Splits, check_classes, decode_all, number

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
TABLE = "labels.csv"
_FILE_COLUMNS = ("file", "filename", "file_name", "path", "image")
_LABEL_COLUMNS = ("label", "class", "target")


class Folder:
    """The images below one folder. Their class is the folder directly below it, unless `labels` are given."""

    def __init__(
        self,
        root: Path,
        *,
        channels: int = 3,
        files: list[bytes] | None = None,
        labels: list[str] | None = None,
    ) -> None:
        self.root, self.channels = root, channels
        self.left_out: Counter[str] = Counter()
        if files is None:
            files, self.left_out = _walk(root)
        if not files:
            known = " ".join(sorted(EXTENSIONS))
            raise ValueError(f"no images below {root}: looked for files that end in {known}")
        self.files = Names(files)
        self.classes: tuple[str, ...] = ()
        self.labels: Tensor | None = None
        tops = [_top(f) for f in files] if labels is None else labels
        if labels is not None or (
            len(set(tops)) > 1 and "" not in tops
        ):  # images beside the folders: no classes
            self.classes, self.labels = number(tops)

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return printable(self.files[index])

    def encoded(self, index: int) -> bytes:
        file = os.path.join(os.fsencode(self.root), self.files[index])
        try:
            if not os.path.isfile(file):
                raise Unreadable(printable(file), "it is no regular file")
            with open(file, "rb") as opened:
                return opened.read()
        except OSError as e:
            raise Unreadable(printable(file), e.strerror or str(e)) from e

    def read(self, index: int) -> Tensor:
        return decode(self.encoded(index), str(self.root / self.name(index)), channels=self.channels)

    def in_memory(self) -> Decoded | None:
        return self._decoded

    @cached_property
    def _decoded(self) -> Decoded | None:
        return decode_all(self)

    def notes(self) -> tuple[str, ...]:
        """What a person should know of what was found."""
        if not self.left_out:
            return ()
        kinds = ", ".join(f"{n:,} {ending}" for ending, n in self.left_out.most_common(6))
        return (f"left out in {self.root}, as they do not end like an image: {kinds}",)


def _top(file: bytes) -> str:
    folder, slash, _ = file.partition(b"/")
    return printable(folder) if slash else ""


def _walk(root: Path) -> tuple[list[bytes], Counter[str]]:
    """Sorted paths of image files relative to `root`, with forward slashes; and the endings of all other files.

    Hidden files and folders do not count. Links to folders are followed, save those that lead back to a
    folder that is being looked into.
    """
    found: list[bytes] = []
    others: Counter[str] = Counter()
    start = os.fsencode(root)
    waiting = [(start, b"", frozenset({_identity(start)}))]
    while waiting:
        folder, prefix, above = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(b"."):
                        continue
                    if entry.is_dir():
                        here = _identity(entry.path)
                        if here not in above:
                            waiting.append((entry.path, prefix + entry.name + b"/", above | {here}))
                        continue
                    ending = printable(os.path.splitext(entry.name)[1].lower())
                    if ending in EXTENSIONS:
                        found.append(prefix + entry.name)
                    else:
                        others[ending or "without ending"] += 1
        except OSError as e:
            where = printable(e.filename or folder) if isinstance(e.filename or folder, bytes) else e.filename
            raise ValueError(f"cannot look into the folder {where}: {e.strerror}") from e
    return sorted(found), others


def _identity(folder: bytes) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def open_folder(root: Path, *, channels: int = 3) -> Splits:
    """A folder with `train/` and `test/` (or `val/`) is split by them; a `labels.csv` by its column `split`."""
    if not root.exists():
        raise FileNotFoundError(
            f"there is no folder {root}. A source is a folder of images, a packed store, patterns, "
            "torchvision:NAME or hf:NAME"
        )
    if not root.is_dir():
        raise ValueError(f"{root} is a file: give the folder that holds the images")
    if (root / TABLE).is_file():
        return _open_table(root, channels)
    held_out = [root / name for name in HELD_OUT if (root / name).is_dir()]
    if not ((root / "train").is_dir() and held_out):
        images = Folder(root, channels=channels)
        if {_top(f) for f in images.files} == {"train"}:  # the classes lie one level deeper
            images = Folder(root / "train", channels=channels)
        return Splits(images, None, images.notes())
    train, test = Folder(root / "train", channels=channels), Folder(held_out[0], channels=channels)
    check_classes(train, test)
    return Splits(train, test, train.notes() + test.notes())


def _open_table(root: Path, channels: int) -> Splits:
    """A folder whose `labels.csv` names each image, its class and, if it likes, its split."""
    rows = _read_table(root / TABLE)
    on_disk, left_out = _walk(root)
    left_out[".csv"] -= 1
    known = set(on_disk)
    notes = []
    absent = sorted({f for f, _, _ in rows} - known)
    if absent:
        raise ValueError(
            f"{root / TABLE} names {len(absent):,} images that are not there, such as {printable(absent[0])}: "
            "its first column holds paths relative to the folder"
        )
    unnamed = len(known) - len({f for f, _, _ in rows})
    if unnamed:
        notes.append(f"left out in {root}, as {TABLE} does not name them: {unnamed:,} images")
    sides: list[Folder | None] = []
    for held_out in (False, True):
        mine = sorted(row for row in rows if (row[2] in HELD_OUT) is held_out)
        if not mine:
            sides.append(None)
            continue
        files, labels = [f for f, _, _ in mine], [label for _, label, _ in mine]
        sides.append(Folder(root, channels=channels, files=files, labels=labels))
    train, test = sides
    if train is None:
        raise ValueError(
            f"{root / TABLE} holds no images to train on: each is in a split of {', '.join(HELD_OUT)}"
        )
    if test is not None:
        check_classes(train, test)
    train.left_out = +left_out
    return Splits(train, test, (*notes, *train.notes()))


def _read_table(table: Path) -> list[tuple[bytes, str, str]]:
    """(file, class, split) of every row; the split is empty where the table has none."""
    with open(table, newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file)
            columns = {(c or "").strip().lower(): c for c in reader.fieldnames or ()}
            rows = list(reader)
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
    split = columns.get("split")
    found = []
    for line, row in enumerate(rows, 2):
        name, label = row[names[0]], row[labels[0]]
        if not name or not label:
            raise ValueError(f"line {line} of {table} lacks its file or its class")
        clean = os.path.normpath(name.strip()).replace(os.sep, "/")
        found.append(
            (os.fsencode(clean), label.strip(), ((row[split] or "") if split else "").strip().lower())
        )
    if len({f for f, _, _ in found}) < len(found):
        twice = next(f for f, n in Counter(f for f, _, _ in found).items() if n > 1)
        raise ValueError(f"{table} names {printable(twice)} more than once")
    return found
