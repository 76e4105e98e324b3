"""What a source of images is, and how its name becomes one."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

IN_MEMORY_SIDE = 96  # images up to this side and of one size are kept in memory, as uint8,
IN_MEMORY_BYTES = 4 << 30  # while they take no more than this


class Images(Protocol):
    """One split: `n` images, each uint8 (3, H, W), with labels where the source has any."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> Tensor | None:
        """(n,) int64, indices into `classes`."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What a person calls image `index`: its file, say."""

    def read(self, index: int) -> Tensor:
        """Image `index`, decoded."""

    def in_memory(self) -> Tensor | None:
        """All of them as uint8 (n, 3, H, W) if they are small and of one size, else None; decoded once."""


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

    @property
    def classes(self) -> tuple[str, ...]:
        return self.whole.classes

    @property
    def labels(self) -> Tensor | None:
        return None if self.whole.labels is None else self.whole.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.whole.name(int(self.indices[index]))

    def read(self, index: int) -> Tensor:
        return self.whole.read(int(self.indices[index]))

    def in_memory(self) -> Tensor | None:
        return self._pixels

    @cached_property
    def _pixels(self) -> Tensor | None:
        decoded = vars(self.whole).get("_pixels")  # taken if it is there, but not asked for
        return decode_all(self) if decoded is None else decoded[self.indices]


def decode_all(images: Images) -> Tensor | None:
    """Every image of a split in one tensor, or None if they are too large or of several sizes."""
    from concurrent.futures import ThreadPoolExecutor

    if not len(images):
        return None
    shape = images.read(0).shape
    if max(shape[1:]) > IN_MEMORY_SIDE or len(images) * shape.numel() > IN_MEMORY_BYTES:
        return None
    out = torch.empty(len(images), *shape, dtype=torch.uint8)

    def fill(first: int) -> bool:
        for i in range(first, min(first + 256, len(images))):
            image = images.read(i)
            if image.shape != shape:
                return False
            out[i] = image
        return True

    with ThreadPoolExecutor(2) as pool:  # decoders let go of the interpreter while they work
        return out if all(pool.map(fill, range(0, len(images), 256))) else None


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
    return Subset(images, order[:limit].sort().values)


def _take_turns(order: Tensor, labels: Tensor) -> Tensor:
    """The same order, but the classes take turns: every prefix holds each class alike."""
    turn = torch.empty_like(order)
    for c in torch.unique(labels):
        mine = labels == c
        turn[mine] = torch.arange(int(mine.sum()))
    return order[turn.argsort(stable=True)]


def open_source(name: str) -> Splits:
    """`patterns`, `patterns:NUMBER`, `patterns:NUMBERxSIZE`, `torchvision:NAME`, or the path of a folder."""
    kind, _, rest = name.partition(":")
    if kind == "patterns":
        from ecpp.data.generated import open_patterns

        return open_patterns(rest)
    if kind == "torchvision" and rest:
        from ecpp.data.hub import open_torchvision

        return open_torchvision(rest)
    from ecpp.data.folder import open_folder

    return open_folder(Path(os.path.expanduser(name)))


def check_classes(train: Images, test: Images) -> None:
    """Two splits must number the same classes alike."""
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))[:5]
        raise ValueError(
            f"training and held-out images have different classes, such as {', '.join(odd) or 'in another order'}: "
            "both must hold the same class folders"
        )
