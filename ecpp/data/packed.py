"""A packed store, opened: a folder of NumPy files that are mapped into memory, so that opening reads no image.

pack.json         what is in it: see `pack`
train/, test/     of each split:
  pixels.npy      (n, C, H, W) uint8, if pixels are stored and all images have one size; otherwise
  bytes.npy       (bytes,) uint8, the images one after another, each a JPEG or (H, W, C) pixels,
  ends.npy        (n + 1,) int64: image i is bytes[ends[i]:ends[i + 1]], and
  sizes.npy       (n, 2) int32, height and width where pixels are stored
  names.npy, name_ends.npy    likewise the names, in UTF-8
  labels.npy      (n,) int64, if there are classes
"""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ecpp.data.decode import decode
from ecpp.data.names import printable
from ecpp.data.npy import Array, open_array
from ecpp.data.source import IN_MEMORY_BYTES, IN_MEMORY_SIDE, Decoded, Splits, decode_all
from ecpp.data.unreadable import Unreadable

FORMAT, VERSION = "ecpp pack", 1
ABOUT = "pack.json"
LEFT_OUT = "unreadable.json"


@dataclass(frozen=True)
class Content:
    """What pack.json says of a split."""

    count: int
    store: str
    channels: int
    size: tuple[int, int] | None  # height and width of stored pixels, if all have one
    labelled: bool
    classes: tuple[str, ...]


class PackImages:
    """One split of a packed store."""

    def __init__(self, folder: Path, content: Content) -> None:
        self.folder, self.content = folder, content
        self.channels, self.classes = content.channels, content.classes

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_maps", "_decoded", "labels")}

    def __len__(self) -> int:
        return self.content.count

    @cached_property
    def labels(self) -> Tensor | None:
        return torch.from_numpy(self._maps["labels"].copy()) if self.content.labelled else None

    def name(self, index: int) -> str:
        start, stop = self._maps["name_ends"][index : index + 2]
        return printable(self._maps["names"][start:stop].tobytes())

    def encoded(self, index: int) -> bytes | None:
        return self._bytes(index) if self.content.store == "jpeg" else None

    def read(self, index: int) -> Tensor:
        if self.content.store == "jpeg":
            return decode(self._bytes(index), self._full_name(index), channels=self.channels)
        if self.content.size is not None:
            return torch.from_numpy(self._maps["pixels"][index].copy())
        height, width = self._maps["sizes"][index].tolist()
        data = bytearray(self._bytes(index))
        if len(data) != height * width * self.channels:
            raise Unreadable(self._full_name(index), "the packed store is damaged there")
        pixels = torch.frombuffer(data, dtype=torch.uint8)
        return pixels.view(height, width, self.channels).permute(2, 0, 1)

    def _bytes(self, index: int) -> bytes:
        start, stop = self._maps["ends"][index : index + 2]
        data: bytes = self._maps["bytes"][start:stop].tobytes()
        return data

    def _full_name(self, index: int) -> str:
        return f"{self.name(index)} in {self.folder}"

    def in_memory(self) -> Decoded | None:
        return self._decoded

    @cached_property
    def _decoded(self) -> Decoded | None:
        if self.content.store == "jpeg":
            return decode_all(self)
        size = self.content.size
        if size is None or max(size) > IN_MEMORY_SIDE or self._maps["pixels"].nbytes > IN_MEMORY_BYTES:
            return None
        return Decoded(torch.from_numpy(self._maps["pixels"].copy()), {})

    @cached_property
    def _maps(self) -> dict[str, Array]:
        """The files by name, mapped when they are first needed; each process maps them anew."""
        n, size = self.content.count, self.content.size
        maps = {"name_ends": self._map("name_ends", "<i8", n + 1)}
        maps["names"] = self._map("names", "|u1", int(maps["name_ends"][n]))
        if self.content.labelled:
            maps["labels"] = self._map("labels", "<i8", n)
        if size is not None:
            return maps | {"pixels": self._map("pixels", "|u1", n, self.channels, *size)}
        maps["ends"] = self._map("ends", "<i8", n + 1)
        maps["bytes"] = self._map("bytes", "|u1", int(maps["ends"][n]))
        if self.content.store == "pixels":
            maps["sizes"] = self._map("sizes", "<i4", n, 2)
        return maps

    def _map(self, name: str, kind: str, *shape: int) -> Array:
        file = self.folder / f"{name}.npy"
        try:
            return open_array(file, kind, shape)
        except ValueError as e:
            raise ValueError(f"the packed store is damaged at {file}: {e}. Pack its source again") from e

    def check(self) -> None:
        """A sentence if a file is missing or too short. Only headers are read."""
        self._maps  # noqa: B018 (mapping is the check)


def is_pack(path: Path) -> bool:
    return os.path.isfile(path / ABOUT)


def open_pack(path: Path, *, channels: int = 3) -> Splits:
    """The splits of a packed store, which must have as many channels as are asked for."""
    file = path / ABOUT
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ValueError(f"{file} is damaged: {e}. Pack its source again") from e
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{file} is not the one of a packed store: rename it to read the folder as images")
    if about.get("version") != VERSION:
        raise ValueError(
            f"{path} was packed by another version of ecpp: its format is {about.get('version')}, but this one "
            f"reads {VERSION}. Pack its source again"
        )
    try:
        parts = {name: _content(about, split) for name, split in about["splits"].items()}
        bad = sum(split["unreadable"] for split in about["splits"].values())
        train = PackImages(path / "train", parts["train"])
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise ValueError(f"{file} is damaged: {type(e).__name__} at {e}. Pack its source again") from e
    if train.channels != channels:
        raise ValueError(
            f"{path} holds images of {train.channels} channels, but --channels is {channels}: ask for "
            f"{train.channels}, or pack its source again with --channels {channels}"
        )
    test = PackImages(path / "test", parts["test"]) if "test" in parts else None
    for images in (train, test):
        if images is not None:
            images.check()
    notes = (f"left out when {path} was packed, as they cannot be read: {bad:,} images, see {LEFT_OUT}",)
    return Splits(train, test, notes if bad else ())


def _content(about: dict[str, Any], split: dict[str, Any]) -> Content:
    size = split["size"]
    if about["store"] not in ("pixels", "jpeg"):
        raise ValueError(f"store {about['store']!r}")
    return Content(
        count=int(split["count"]),
        store=about["store"],
        channels=int(about["channels"]),
        size=None if size is None else (int(size[0]), int(size[1])),
        labelled=bool(split["labelled"]),
        classes=tuple(split["classes"]),
    )
