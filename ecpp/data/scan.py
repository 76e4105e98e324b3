"""Scan a source: decode every image once, and say what is in it and what is wrong with it."""

import struct
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ecpp.data import near as nearness
from ecpp.data.decode import open_image
from ecpp.data.each import each
from ecpp.data.source import Images, open_source, subset
from ecpp.data.unreadable import Unreadable

SMALL = 32  # pixels: few views can be cut from images whose shorter side is below
_MOST_COMMON = 5


def scan(
    source: str,
    *,
    limit: int | None = None,
    channels: int = 3,
    classes: Path | None = None,
    workers: int | None = None,
    near: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """What is in a source, as JSON. `limit` takes that many images of each split; `near` is in bits of 64."""
    if not 0 <= near <= nearness.MOST:
        raise ValueError(
            f"--near is {near}: give from 0 to {nearness.MOST} bits of the 64 of a picture's hash"
        )
    splits = open_source(source, channels=channels, classes=classes)
    parts = {"train": splits.train} if splits.test is None else {"train": splits.train, "test": splits.test}
    tallies = {name: _Tally(subset(images, limit, seed=0)) for name, images in parts.items()}
    total, done = sum(len(t.images) for t in tallies.values()), 0
    for tally in tallies.values():
        for i, result in enumerate(each(tally.images, measure, workers=workers)):
            tally.add(i, result)
            done += 1
            if progress is not None:
                progress(done, total)
    return {
        "source": source,
        "limit": limit,
        "channels": channels,
        "notes": list(splits.notes),
        "splits": {name: tally.summary() for name, tally in tallies.items()},
        "duplicates": _duplicates(tallies, near),
    }


class Coded(NamedTuple):
    """What the file of an image says before it is decoded."""

    format: str
    mode: str
    rotated: bool
    animated: bool
    transparent: bool


class Measured(NamedTuple):
    """What is kept of an image."""

    height: int
    width: int
    mean: list[float]  # per channel, in [0, 1]
    square: list[float]  # likewise the mean of the squares
    hash: tuple[int, int]
    difference: int | None
    coded: Coded | None


def measure(images: Images, index: int) -> Measured:
    """A worker's share: one image, decoded and measured."""
    image = images.read(index)
    height, width = image.shape[1:]
    counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in image]).double()  # (C, 256)
    level = torch.arange(256, dtype=torch.float64) / 255
    data = images.encoded(index)
    return Measured(
        height,
        width,
        (counts @ level / (height * width)).tolist(),
        (counts @ level.square() / (height * width)).tolist(),
        nearness.pixel_hash(image),
        nearness.difference_hash(image),
        None if data is None else _coded(data),
    )


def _coded(data: bytes) -> Coded:
    from PIL import Image

    refused = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with open_image(data) as image:
            format, mode = image.format or "unknown", image.mode
            rotated = image.getexif().get(0x0112) in range(2, 9)  # orientation
            transparent = mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
            # A multi-picture JPEG holds a photograph and its thumbnails.
            animated = format != "MPO" and getattr(image, "is_animated", False)
    except (*refused, OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error):
        return Coded("unknown to PIL", "unknown to PIL", False, False, False)
    return Coded(format, mode, rotated, bool(animated), transparent)


class _Tally:
    """What was measured in one split: some 60 bytes for each image."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.indices, self.heights, self.widths = array("q"), array("i"), array("i")
        self.hashes, self.differences, self.plain = array("q"), array("q"), array("b")
        self.mean = torch.zeros(images.channels, dtype=torch.float64)
        self.square = torch.zeros(images.channels, dtype=torch.float64)
        self.coded: Counter[Coded] = Counter()
        self.unreadable: list[dict[str, str]] = []

    def add(self, index: int, result: Measured | Unreadable) -> None:
        if isinstance(result, Unreadable):
            self.unreadable.append({"name": self.images.name(index), "reason": result.reason})
            return
        self.indices.append(index)
        self.heights.append(result.height)
        self.widths.append(result.width)
        self.hashes.extend(result.hash)
        self.differences.append(result.difference or 0)
        self.plain.append(result.difference is None)
        self.mean += torch.tensor(result.mean, dtype=torch.float64)
        self.square += torch.tensor(result.square, dtype=torch.float64)
        if result.coded is not None:
            self.coded[result.coded] += 1

    def summary(self) -> dict[str, Any]:
        n = len(self.indices)
        mean, square = self.mean / max(1, n), self.square / max(1, n)
        return {
            "images": len(self.images),
            "unreadable": self.unreadable,
            "sizes": _sizes(_tensor(self.heights), _tensor(self.widths)) if n else None,
            "mean": mean.tolist() if n else None,
            "std": (square - mean.square()).clamp(min=0).sqrt().tolist() if n else None,
            "files": _files(self.coded) if self.coded else None,
            "classes": self._classes(),
        }

    def _classes(self) -> dict[str, int] | None:
        """How many images of each class can be read."""
        if self.images.labels is None:
            return None
        mine = self.images.labels[_tensor(self.indices)]
        counts = torch.bincount(mine, minlength=len(self.images.classes)).tolist()
        return dict(zip(self.images.classes, counts, strict=True))


def _tensor(values: "array[int]") -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))


def _sizes(heights: Tensor, widths: Tensor) -> dict[str, Any]:
    sizes, counts = torch.unique(heights << 32 | widths, return_counts=True)
    common = counts.argsort(descending=True, stable=True)[:_MOST_COMMON]
    return {
        "height": _spread(heights),
        "width": _spread(widths),
        "megapixels": _spread((heights * widths).double() / 1e6),
        "different": len(sizes),
        "common": [
            {"height": size >> 32, "width": size & 0xFFFFFFFF, "images": n}
            for size, n in zip(sizes[common].tolist(), counts[common].tolist(), strict=True)
        ],
        f"below_{SMALL}": int((torch.minimum(heights, widths) < SMALL).sum()),
    }


def _spread(values: Tensor) -> dict[str, float]:
    values = values.sort().values
    low, middle, high = values[0].item(), values[(len(values) - 1) // 2].item(), values[-1].item()
    return {"min": low, "median": middle, "max": high}


def _files(coded: Counter[Coded]) -> dict[str, Any]:
    formats: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    for kind, n in coded.items():
        formats[kind.format] += n
        modes[kind.mode] += n
    return {
        "formats": dict(formats.most_common()),
        "modes": dict(modes.most_common()),
        "rotated": sum(n for kind, n in coded.items() if kind.rotated),
        "animated": sum(n for kind, n in coded.items() if kind.animated),
        "transparent": sum(n for kind, n in coded.items() if kind.transparent),
    }


def _duplicates(tallies: dict[str, _Tally], near: int) -> dict[str, Any]:
    """Groups of equal and of nearly equal pictures, each as [split, name]; those in both splits spoil an accuracy."""
    split = torch.cat([torch.full((len(t.indices),), s) for s, t in enumerate(tallies.values())])
    equal = nearness.same(torch.cat([_tensor(t.hashes).view(-1, 2) for t in tallies.values()]))
    plain = torch.cat([_tensor(t.plain) for t in tallies.values()]).bool()
    compared = (~plain).nonzero()[:, 0]
    close = nearness.alike(torch.cat([_tensor(t.differences) for t in tallies.values()])[compared], near)
    close_groups = [compared[group].tolist() for group in nearness.groups(close)]
    sides = list(tallies.items())
    index = torch.cat([_tensor(t.indices) for t in tallies.values()])

    def called(place: int) -> list[str]:
        name, tally = sides[int(split[place])]
        return [name, tally.images.name(int(index[place]))]

    def listed(groups: list[list[int]]) -> dict[str, Any]:
        across = [group for group in groups if len(torch.unique(split[group])) > 1]
        return {
            "copies": sum(len(group) - 1 for group in groups),
            "groups": [[called(place) for place in group] for group in groups],
            "groups_across": len(across),
            "test_in_train": sum(int((split[group] > 0).sum()) for group in across),
        }

    return {
        "exact": listed(nearness.groups(equal)),
        # Groups of equal pictures alone stand in the first list.
        "near": listed([g for g in close_groups if len(torch.unique(equal[g])) > 1])
        | {"bits": near, "too_plain": int(plain.sum())},
    }
