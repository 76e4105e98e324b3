"""From the bytes of a file to a uint8 tensor (C, H, W), upright, with the channels that were asked for."""

import io
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

_SIDEWAYS = (5, 6, 7, 8)  # orientations of EXIF that swap height and width
_ORIENTATION = 0x0112
_OPENING = threading.Lock()


class Unreadable(ValueError):
    """One image cannot be decoded. The sentence names it and says why; `reason` is the second part alone."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"cannot read the image {name}: {reason}. Mend it or take it out")
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[type["Unreadable"], tuple[str, str]]:
        return Unreadable, (self.name, self.reason)  # workers send it to the main process


def decode(data: bytes, name: str, *, channels: int = 3) -> Tensor:
    """The image in `data`; `name` is for the error. Everything that PIL opens becomes 8 bits per channel.

    3 channels are RGB (transparent pixels lie on white), 1 is grey, any other number must be the file's own;
    16 bits are scaled down, so that 65535 becomes 255.
    """
    return Encoded(data, name, channels=channels).decode()


class Encoded:
    """An image whose header was read: its size is known, its pixels are not yet decoded."""

    def __init__(self, data: bytes, name: str, *, channels: int = 3) -> None:
        self.data, self.name, self.channels = data, name, channels
        if not data:
            raise Unreadable(name, "the file is empty")
        self._bands: Tensor | None = None
        if _is_tiff(data) and channels not in (1, 3):
            self._bands = _read_bands(data, name, channels)
            self.size = _height_width(self._bands)
            return
        with _named(name):
            self._image = open_image(data)
            self.size = size_of(self._image)

    def decode(self, factor: int = 1) -> Tensor:
        """uint8 (C, H, W). A JPEG may be decoded smaller by a `factor` of 2, 4 or 8, which is faster; others stay."""
        if self._bands is not None:
            return self._bands
        with _named(self.name):
            pixels = self._fast() if factor == 1 else None
            if pixels is None:
                if factor > 1 and self._image.format == "JPEG":
                    width, height = self._image.size
                    self._image.draft(None, (-(-width // factor), -(-height // factor)))
                pixels = _pixels(_upright(self._image), self.channels)
        if 0 in pixels.shape:
            raise Unreadable(self.name, f"it holds {pixels.shape[2]}×{pixels.shape[1]} pixels")
        return pixels

    def _fast(self) -> Tensor | None:
        """torchvision's decoder for plain JPEGs: the same library as PIL's, with fewer copies."""
        wanted = {3: "RGB", 1: "L"}.get(self.channels)
        if self._image.format != "JPEG" or self._image.mode != wanted or not _is_upright(self._image):
            return None
        from torchvision.io import ImageReadMode, decode_jpeg

        mode = ImageReadMode.RGB if wanted == "RGB" else ImageReadMode.GRAY
        try:
            decoded = decode_jpeg(torch.frombuffer(bytearray(self.data), dtype=torch.uint8), mode)
        except RuntimeError:  # PIL may still read it; if not, its reason is the clearer one
            return None
        return decoded if isinstance(decoded, Tensor) else decoded[0]


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Whatever PIL raises over damaged bytes, as one sentence that names the image."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError:
        raise Unreadable(name, "it holds no image that PIL knows") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        limit = f"{Image.MAX_IMAGE_PIXELS or 0:,}"
        raise Unreadable(name, f"it unpacks to more than {limit} pixels, which may be an attack") from None
    except _FAILURES as e:
        raise Unreadable(name, str(e).strip().split("\n")[0][:200] or type(e).__name__) from e


# What PIL's decoders raise when they meet bytes that they did not expect.
_FAILURES = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError,
             EOFError, MemoryError, NotImplementedError, RuntimeError, struct.error)  # fmt: skip


def open_image(data: bytes) -> "Image.Image":
    """PIL's lazy image of some bytes; one that unpacks to far more than a photograph is refused."""
    from PIL import Image

    # PIL only warns of what is large but not enormous; filters of warnings belong to all threads, hence the lock.
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(data))


def size_of(image: "Image.Image") -> tuple[int, int]:
    """(height, width) of an image when it stands upright."""
    width, height = image.size
    return (width, height) if image.getexif().get(_ORIENTATION) in _SIDEWAYS else (height, width)


def _height_width(pixels: Tensor) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[2]


def _is_upright(image: "Image.Image") -> bool:
    return bool(image.getexif().get(_ORIENTATION, 1) == 1)


def _upright(image: "Image.Image") -> "Image.Image":
    from PIL import ImageOps

    return image if _is_upright(image) else ImageOps.exif_transpose(image)


def _pixels(image: "Image.Image", channels: int) -> Tensor:
    if channels not in (1, 3):
        bands = len(image.getbands())
        if bands != channels or image.mode in ("P", "PA", "F", "I"):
            raise ValueError(f"it has {bands} channels ({image.mode}), but {channels} were asked for")
        return _tensor(image)
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    if image.mode == "F":
        raise ValueError("its floating-point values have no known range: store it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = _on_white(image)
    wanted = "RGB" if channels == 3 else "L"
    return _tensor(image if image.mode == wanted else image.convert(wanted))


def _eight_bits(image: "Image.Image") -> "Image.Image":
    """Sixteen bits of grey, which PIL's own conversion would cut off at 255."""
    wide = image.convert("I")
    low, high = (value for value in wide.getextrema() if not isinstance(value, tuple))  # of one band
    if not 0 <= low <= high <= 65535:
        raise ValueError(f"its 32-bit values from {low} to {high} have no known range: store 8 or 16 bits")
    return wide.point(lambda v: v / 257 + 0.5).convert("L")


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _tensor(image: "Image.Image") -> Tensor:
    """The pixels as (C, H, W), a view of the decoder's own order: channels last in memory."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, -1).permute(2, 0, 1)


def _is_tiff(data: bytes) -> bool:
    return data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def _read_bands(data: bytes, name: str, channels: int) -> Tensor:
    """A TIFF of any number of channels, which PIL does not open."""
    try:
        import tifffile
    except ImportError:
        raise ImportError(
            f"TIFF files of {channels} channels need tifffile: pip install 'ecpp[tiff]'"
        ) from None
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            array, axes = series.asarray(), series.axes
    except (*_FAILURES, tifffile.TiffFileError) as e:
        raise Unreadable(name, str(e).strip().split("\n")[0][:200] or type(e).__name__) from e
    return _from_array(array, axes, name, channels)


def _from_array(array: "np.ndarray[Any, Any]", axes: str, name: str, channels: int) -> Tensor:
    """Rows, columns and one more axis, the channels, in the order that the file states."""
    if "Y" not in axes or "X" not in axes or array.ndim != 3:
        raise Unreadable(name, f"its axes are {axes}, but height, width and channels were expected")
    array = array.transpose(
        [i for i, a in enumerate(axes) if a not in "YX"] + [axes.index("Y"), axes.index("X")]
    )
    if len(array) != channels:
        raise Unreadable(name, f"it has {len(array)} channels, but {channels} were asked for")
    if array.dtype.kind != "u" or array.dtype.itemsize > 2:
        raise Unreadable(name, f"its values are {array.dtype}: store 8 or 16 unsigned bits")
    if array.dtype.itemsize == 2:
        array = ((array.astype("uint32") * 255 + 32767) // 65535).astype("uint8")
    pixels = torch.from_numpy(array.copy()).permute(1, 2, 0).contiguous()  # (H, W, C), as other images lie
    return pixels.permute(2, 0, 1)


def to_channels(image: Tensor, channels: int, name: str) -> Tensor:
    """An image that was made as RGB, with 3 channels or as grey."""
    if image.shape[-3] == channels:
        return image
    if image.shape[-3] == 3 and channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
        return (image * weights).sum(dim=-3, keepdim=True).round().to(torch.uint8)
    raise ValueError(f"{name} has {image.shape[-3]} channels, but --channels is {channels}")
