"""TIFF files of any number of channels, as satellites and microscopes write them."""

import io
import logging
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ecpp.data.unreadable import Unreadable, most_pixels, named

if TYPE_CHECKING:
    import numpy as np


def is_tiff(data: bytes) -> bool:
    """By its first bytes: either order of bytes, small or big."""
    return data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def read_bands(data: bytes, name: str, channels: int) -> Tensor:
    """A TIFF of any number of channels, which PIL does not open."""
    try:
        import tifffile
    except ImportError:
        raise ImportError(
            f"TIFF files of {channels} channels need tifffile: pip install 'ecpp[tiff]'"
        ) from None
    logging.getLogger("tifffile").addHandler(logging.NullHandler())  # the reason stands in the error
    try:
        with named(name), tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            _check_bands(series.shape, series.axes, series.dtype, channels)
            return _from_array(series.asarray(), series.axes)
    except tifffile.TiffFileError as e:
        raise Unreadable(name, str(e).split("\n")[0][:200]) from e


def _check_bands(shape: tuple[int, ...], axes: str, dtype: "np.dtype[Any] | None", channels: int) -> None:
    """Before anything is unpacked: rows, columns and one more axis, the channels."""
    if len(axes) != 3 or len(shape) != 3 or len({"Y", "X"} & set(axes)) != 2:
        raise ValueError(f"its axes are {axes}, but height, width and channels were expected")
    found = next(n for n, axis in zip(shape, axes, strict=True) if axis not in "YX")
    if found != channels:
        raise ValueError(f"it has {found} channels, but {channels} were asked for")
    if dtype is None or dtype.kind != "u" or dtype.itemsize > 2:
        raise ValueError(f"its values are {dtype}: store 8 or 16 unsigned bits")
    if math.prod(shape) // channels > most_pixels():
        raise ValueError(f"it unpacks to more than {most_pixels():,} pixels, which may be an attack")


def _from_array(array: "np.ndarray[Any, Any]", axes: str) -> Tensor:
    """Rows, columns and channels in the order of `axes` to (C, H, W)."""
    band = next(i for i, axis in enumerate(axes) if axis not in "YX")
    array = array.transpose(
        axes.index("Y"), axes.index("X"), band
    )  # (H, W, C), as other images lie in memory
    if array.dtype.itemsize == 2:
        array = eight_bits()[array]
    return torch.from_numpy(array.copy(order="C")).permute(2, 0, 1)


def eight_bits() -> "np.ndarray[Any, Any]":
    """What each of the 65,536 values of 16 bits becomes: 65535 is 255."""
    import numpy as np

    return ((np.arange(1 << 16) * 255 + 32767) // 65535).astype(np.uint8)
