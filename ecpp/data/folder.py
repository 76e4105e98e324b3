"""Any folder of images: recursive, with or without class folders or a labels.csv, with or without splits."""

import os
import stat
from collections import Counter
from functools import cached_property
from pathlib import Path

from torch import Tensor

from ecpp.data.decode import decode
from ecpp.data.names import Names, printable
from ecpp.data.source import HELD_OUT, Decoded, Splits, check_classes, decode_all, number
from ecpp.data.unreadable import Unreadable

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
TABLE = "labels.csv"


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
            files, self.left_out = walk(root)
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
            if not stat.S_ISREG(os.stat(file).st_mode):
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


def walk(root: Path) -> tuple[list[bytes], Counter[str]]:
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
                    if _is_folder(entry):
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


def _is_folder(entry: "os.DirEntry[bytes]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


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
        from ecpp.data.table import open_table

        return open_table(root, channels=channels)
    held_out = [root / name for name in HELD_OUT if (root / name).is_dir()]
    if not ((root / "train").is_dir() and held_out):
        images = Folder(root, channels=channels)
        if {_top(f) for f in images.files} == {"train"}:  # the classes lie one level deeper
            images = Folder(root / "train", channels=channels)
        return Splits(images, None, images.notes())
    train, test = Folder(root / "train", channels=channels), Folder(held_out[0], channels=channels)
    check_classes(train, test)
    return Splits(train, test, (*unused(root, [f.name for f in held_out[1:]]), *train.notes(), *test.notes()))


def unused(root: Path, splits: list[str]) -> tuple[str, ...]:
    """A note about more held-out splits than one."""
    return (f"left out in {root}: its splits {', '.join(splits)}",) if splits else ()
