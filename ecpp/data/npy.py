"""NumPy's .npy files that grow: written as a stream, and readable with np.load(file, mmap_mode="r")."""

import os
import struct
import tokenize
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

HEADER = 128  # bytes before the values: a multiple of 64, with room for any shape


class Growing:
    """An array in a file, whose values are appended as bytes; its shape is known when it is closed."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind, self.bytes = path, kind, 0
        self.file = open(path, "w+b")  # noqa: SIM115 (it stays open while it grows)
        self.file.write(_header(kind, (0,)))

    def append(self, data: bytes) -> None:
        self.file.write(data)
        self.bytes += len(data)

    def close(self, *shape: int) -> None:
        """Write the header again, now with the shape, and wait until the whole file is on the disk."""
        self.file.seek(0)
        self.file.write(_header(self.kind, shape))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def _header(kind: str, shape: tuple[int, ...]) -> bytes:
    """Version 1.0 of the format: magic, the length of the rest, and a dict in Python's words."""
    text = f"{{'descr': '{np.dtype(kind).str}', 'fortran_order': False, 'shape': {shape}, }}"
    length = HEADER - 10  # what stands before the text takes 10 bytes
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.ljust(length - 1).encode("ascii") + b"\n"


def open_array(path: Path, kind: str, shape: tuple[int, ...]) -> Array:
    """The array in a file, mapped and not read; a ValueError with the reason where it is another one."""
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
    except FileNotFoundError:
        raise ValueError("it is missing") from None
    except (OSError, ValueError, SyntaxError, tokenize.TokenError) as e:
        raise ValueError(str(e).split("\n")[0]) from e
    if array.dtype != np.dtype(kind) or array.shape != shape:
        found = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"it holds {found}, but {np.dtype(kind)} of shape {shape} was expected")
    return array
