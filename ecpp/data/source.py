"""What a source of images is, and how its name becomes one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ecpp.data.unreadable import Unreadable

IN_MEMORY_SIDE = 96  # images up to this side and of one size are kept in memory, as uint8,
IN_MEMORY_BYTES = 4 << 30  # while they take no more than this
HELD_OUT = ("test", "val", "valid", "validation")  # what a split to count on may be called, best first


class Decoded(NamedTuple):
    """All images of a split: uint8 (n, C, H, W), and the reasons of those that could not be read (zeros there)."""

    pixels: Tensor
    unreadable: dict[int, Unreadable]


class Images(Protocol):
    """One split: `n` images, each uint8 (C, H, W), with labels where the source has any."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def channels(self) -> int: ...

    @property
    def labels(self) -> Tensor | None:
        """(n,) int64, indices into `classes`."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What a person calls image `index`: its file, say."""

    def read(self, index: int) -> Tensor:
        """Image `index`, decoded; raises Unreadable where that fails."""

    def encoded(self, index: int) -> bytes | None:
        """The bytes of its file, or None for images that never were in one."""

    def in_memory(self) -> Decoded | None:
        """All of them if they are small and of one size, else None; decoded once."""


@dataclass(frozen=True)
class Splits:
    """A source: what to learn from, and (if it has such a split) what to count on."""

    train: Images
    test: Images | None
    notes: tuple[str, ...] = ()  # what a person should know: files that were left out, say


@dataclass(frozen=True)
class Subset:
    """Some images of another split, in the order of `indices`."""

    whole: Images
    indices: Tensor
    classes: tuple[str, ...]
    labels: Tensor | None

    @property
    def channels(self) -> int:
        return self.whole.channels

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.whole.name(int(self.indices[index]))

    def read(self, index: int) -> Tensor:
        return self.whole.read(int(self.indices[index]))

    def encoded(self, index: int) -> bytes | None:
        return self.whole.encoded(int(self.indices[index]))

    def in_memory(self) -> Decoded | None:
        return self._decoded

    @cached_property
    def _decoded(self) -> Decoded | None:
        whole: Decoded | None = vars(self.whole).get("_decoded")  # taken if it is there, but not asked for
        if whole is None:
            return decode_all(self)
        bad = {i: whole.unreadable[j] for i, j in enumerate(self.indices.tolist()) if j in whole.unreadable}
        return Decoded(whole.pixels[self.indices], bad)


def take(images: Images, indices: Tensor) -> Subset:
    """Some images of a split, with its classes."""
    return Subset(images, indices, images.classes, None if images.labels is None else images.labels[indices])


def decode_all(images: Images) -> Decoded | None:
    """Every image of a split in one tensor, or None if they are too large or of several sizes."""
    from concurrent.futures import ThreadPoolExecutor

    bad: dict[int, Unreadable] = {}
    shape = _first_shape(images, bad)
    if shape is None or max(shape[1:]) > IN_MEMORY_SIDE or len(images) * shape.numel() > IN_MEMORY_BYTES:
        return None
    out = torch.zeros(len(images), *shape, dtype=torch.uint8)

    def fill(first: int) -> bool:
        for i in range(first, min(first + 256, len(images))):
            try:
                image = images.read(i)
            except Unreadable as e:
                bad[i] = e
                continue
            if image.shape != shape:
                return False
            out[i] = image
        return True

    with ThreadPoolExecutor(2) as pool:  # decoders let go of the interpreter while they work
        whole = all(pool.map(fill, range(0, len(images), 256)))
    return Decoded(out, dict(sorted(bad.items()))) if whole else None


def _first_shape(images: Images, bad: dict[int, Unreadable]) -> torch.Size | None:
    """The shape of the first image that can be read; those before it join the bad ones."""
    for i in range(len(images)):
        try:
            return images.read(i).shape
        except Unreadable as e:
            bad[i] = e
    return None


def subset(images: Images, limit: int | None, seed: int) -> Images:
    """A random subset of `limit` images by seed, of every class alike where there are classes."""
    if limit is None or limit >= len(images):
        return images
    if limit < 1:
        raise ValueError(f"a limit of {limit} leaves no images: give a number of at least 1")
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=g)
    if images.labels is not None:
        order = _take_turns(order, images.labels[order])
    return take(images, order[:limit].sort().values)


def _take_turns(order: Tensor, labels: Tensor) -> Tensor:
    """The same order, but the classes take turns: every prefix holds each class alike."""
    turn = torch.empty_like(order)
    for c in torch.unique(labels):
        mine = labels == c
        turn[mine] = torch.arange(int(mine.sum()))
    return order[turn.argsort(stable=True)]


def number(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The classes in alphabetical order, and the number of each image's."""
    classes = tuple(sorted(set(names)))
    place = {c: i for i, c in enumerate(classes)}
    return classes, torch.tensor([place[n] for n in names])


def open_source(name: str, *, channels: int = 3, classes: str | Path | None = None) -> Splits:
    """Images by the name of their source:

    the path of a folder or of a packed store, `patterns[:NUMBER[xSIZE]]`, `torchvision:NAME`,
    `hf:NAME[:CONFIG]` or `hf:PATH`. `classes` is a file that lists the classes to take, one a line.
    """
    if channels < 1:
        raise ValueError(f"--channels must be at least 1, but is {channels}")
    splits = _open(name, channels)
    return splits if classes is None else only_classes(splits, Path(os.path.expanduser(classes)))


def _open(name: str, channels: int) -> Splits:
    kind, _, rest = name.partition(":")
    if kind == "patterns":
        from ecpp.data.generated import open_patterns

        return open_patterns(rest, channels=channels)
    if kind == "torchvision" and rest:
        from ecpp.data.hub import open_torchvision

        return open_torchvision(rest, channels=channels)
    if kind == "hf" and rest:
        from ecpp.data.huggingface import open_hf

        return open_hf(rest, channels=channels)
    path = Path(os.path.expanduser(name))
    from ecpp.data.pack import is_pack, open_pack

    if is_pack(path):
        return open_pack(path, channels=channels)
    from ecpp.data.folder import open_folder

    return open_folder(path, channels=channels)


def only_classes(splits: Splits, file: Path) -> Splits:
    """The images of the classes that a file names, one a line; otherwise its first word, as in lists of synsets."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no list of classes {file}: it is a text file, one class a line"
        ) from None
    except UnicodeDecodeError as e:
        raise ValueError(f"{file} is no list of classes: it should be text in UTF-8, one a line ({e})") from e
    known = set(splits.train.classes)
    wanted = sorted({line if line in known else line.split()[0] for line in lines if line and line[0] != "#"})
    if not wanted:
        raise ValueError(f"{file} names no class: it should hold one a line")
    test = None if splits.test is None else _of_classes(splits.test, wanted, file)
    return Splits(_of_classes(splits.train, wanted, file), test, splits.notes)


def _of_classes(images: Images, wanted: list[str], file: Path) -> Images:
    if images.labels is None:
        raise ValueError(
            f"{file} lists classes, but the images have none: put each class into a folder of its own"
        )
    missing = [c for c in wanted if c not in images.classes]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(wanted)} classes in {file} are not among the {len(images.classes)} of the "
            f"source, such as {missing[0]!r}; it has {', '.join(images.classes[:3])}, …"
        )
    renumber = torch.full((len(images.classes),), -1)
    for new, name in enumerate(wanted):
        renumber[images.classes.index(name)] = new
    labels = renumber[images.labels]
    indices = (labels >= 0).nonzero()[:, 0]
    return Subset(images, indices, tuple(wanted), labels[indices])


def check_classes(train: Images, test: Images) -> None:
    """Two splits must number the same classes alike."""
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))[:5]
        raise ValueError(
            f"training and held-out images have different classes, such as {', '.join(odd) or 'in another order'}: "
            "both must hold the same class folders"
        )
