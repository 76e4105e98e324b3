"""One split of a packed store while it is written; `packed` says what its files hold."""

import math
import os
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ecpp.data.npy import HEADER, Growing
from ecpp.data.source import Images
from ecpp.data.unreadable import Unreadable


class Stored(NamedTuple):
    """An image as it is stored."""

    height: int
    width: int
    data: bytes  # a JPEG, or (H, W, C) pixels


class SplitWriter:
    """One split while it is written, image by image."""

    def __init__(self, folder: Path, images: Images, store: str, files: ExitStack) -> None:
        self.folder, self.images, self.store = folder, images, store
        self.count, self.bad = 0, list[tuple[str, str]]()
        self.size: tuple[int, int] | None = None  # of all pixels so far, while they have one
        kinds = {
            "bytes": "|u1",
            "ends": "<i8",
            "sizes": "<i4",
            "names": "|u1",
            "name_ends": "<i8",
            "labels": "<i8",
        }
        self.arrays = {name: Growing(folder / f"{name}.npy", kind) for name, kind in kinds.items()}
        for array in self.arrays.values():
            files.enter_context(array.file)
        self._append(ends=0, name_ends=0)

    def add(self, index: int, image: Stored | Unreadable) -> None:
        if isinstance(image, Unreadable):
            self.bad.append((self.images.name(index), image.reason))
            return
        size, data = (image.height, image.width), image.data
        if self.store == "pixels":
            if not self.count:
                self.size = size
            elif self.size not in (None, size):
                self._undo_one_size()
            if self.size is not None:
                data = _turned(data, (*size, self.images.channels), (2, 0, 1))  # to (C, H, W)
        self.arrays["bytes"].append(data)
        self.arrays["names"].append(self.images.name(index).encode("utf-8", "backslashreplace"))
        self._append(ends=self.arrays["bytes"].bytes, name_ends=self.arrays["names"].bytes)
        self.arrays["sizes"].append(struct.pack("<2i", *size))
        if self.images.labels is not None:
            self._append(labels=int(self.images.labels[index]))
        self.count += 1

    def _append(self, **values: int) -> None:
        for name, value in values.items():
            self.arrays[name].append(struct.pack("<q", value))

    def _undo_one_size(self) -> None:
        """Bring the pixels so far to (H, W, C), in place: an image of another size has come."""
        shape = (self.images.channels, *(self.size or ()))
        file, step = self.arrays["bytes"].file, math.prod(shape)
        for i in range(self.count):
            file.seek(HEADER + i * step)
            data = file.read(step)
            file.seek(HEADER + i * step)
            file.write(_turned(data, shape, (1, 2, 0)))
        file.seek(0, os.SEEK_END)
        self.size = None

    def close(self) -> dict[str, Any]:
        """Complete the files and remove those that have no use here; what pack.json says of the split."""
        n, labelled = self.count, self.images.labels is not None
        shapes: dict[str, tuple[int, ...]] = {"names": (self.arrays["names"].bytes,), "name_ends": (n + 1,)}
        if labelled:
            shapes["labels"] = (n,)
        if self.size is not None:
            shapes["bytes"] = (n, self.images.channels, *self.size)
        else:
            shapes |= {"bytes": (self.arrays["bytes"].bytes,), "ends": (n + 1,)}
            if self.store == "pixels":
                shapes["sizes"] = (n, 2)
        for name, array in self.arrays.items():
            array.close(*shapes.get(name, (0,)))
            if name not in shapes:
                array.path.unlink()
        if self.size is not None:
            os.rename(self.folder / "bytes.npy", self.folder / "pixels.npy")
        return {
            "count": n,
            "unreadable": len(self.bad),
            "size": self.size,
            "labelled": labelled,
            "classes": self.images.classes,
        }


def _turned(data: bytes, shape: tuple[int, ...], order: tuple[int, int, int]) -> bytes:
    """Pixels of some shape with their axes in another order."""
    return np.frombuffer(data, np.uint8).reshape(shape).transpose(order).tobytes()
