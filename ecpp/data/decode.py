"""From the bytes of a file to a uint8 tensor (C, H, W), upright, with the channels that were asked for."""

import io
import threading
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ecpp.data.tiff import eight_bits, is_tiff, read_bands
from ecpp.data.unreadable import Unreadable, named

if TYPE_CHECKING:
    from PIL import Image

_SIDEWAYS = (5, 6, 7, 8)  # orientations of EXIF that swap height and width
_ORIENTATION = 0x0112
_OPENING = threading.Lock()
# What PIL may open: formats with a mark of their own. Others run programs (EPS) or take any bytes for pixels (TGA).
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000")


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
        if is_tiff(data) and channels not in (1, 3):
            self._bands = read_bands(data, name, channels)
            self.size = _height_width(self._bands)
            return
        with named(name):
            self._image = open_image(data)
            self.size = size_of(self._image)

    def decode(self, factor: int = 1) -> Tensor:
        """uint8 (C, H, W). A JPEG may be decoded smaller by a `factor` of 2, 4 or 8, which is faster; others stay."""
        if self._bands is not None:
            return self._bands
        with named(self.name):
            pixels = self._fast() if factor == 1 else None
            if pixels is None:
                if factor > 1 and self._image.format == "JPEG":
                    width, height = self._image.size
                    self._image.draft(None, (max(1, width // factor), max(1, height // factor)))
                pixels = from_pil(self._image, self.channels)
        if 0 in pixels.shape:
            raise Unreadable(self.name, f"it holds {pixels.shape[2]}×{pixels.shape[1]} pixels")
        return pixels

    def _fast(self) -> Tensor | None:
        """torchvision's decoder for plain JPEGs: the same library as PIL's, with fewer copies."""
        wanted = {3: "RGB", 1: "L"}.get(self.channels)
        if self._image.format != "JPEG" or self._image.mode != wanted or not _is_upright(self._image):
            return None
        try:
            from torchvision.io import ImageReadMode, decode_jpeg
        except ImportError:  # torchvision means to hand it over to another package
            return None
        mode = ImageReadMode.RGB if wanted == "RGB" else ImageReadMode.GRAY
        try:
            decoded = decode_jpeg(torch.frombuffer(bytearray(self.data), dtype=torch.uint8), mode)
        except RuntimeError:  # PIL may still read it; if not, its reason is the clearer one
            return None
        return decoded if isinstance(decoded, Tensor) else decoded[0]


def open_image(data: bytes) -> "Image.Image":
    """PIL's lazy image of some bytes; one that unpacks to far more than a photograph is refused."""
    from PIL import Image

    # PIL only warns of what is large but not enormous; filters of warnings belong to all threads, hence the lock.
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(data), formats=_FORMATS)


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


def from_pil(image: "Image.Image", channels: int) -> Tensor:
    """Any of PIL's images, upright, as uint8 (C, H, W)."""
    image = _upright(image)
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
    """Sixteen bits of grey, which PIL's own conversion would cut off at 255; a value that means clear is white."""
    import numpy as np
    from PIL import Image

    values = np.asarray(image.convert("I"))
    low, high = int(values.min()), int(values.max())
    if not 0 <= low <= high <= 65535:
        raise ValueError(f"its 32-bit values from {low} to {high} have no known range: store 8 or 16 bits")
    grey = eight_bits()[values]
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = 255
    return Image.fromarray(grey)


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _tensor(image: "Image.Image") -> Tensor:
    """The pixels as (C, H, W), a view of the decoder's own order: channels last in memory."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, -1).permute(2, 0, 1)


def to_channels(image: Tensor, channels: int, name: str) -> Tensor:
    """An image that was made as RGB, with 3 channels or as grey."""
    if image.shape[-3] == channels:
        return image
    if image.shape[-3] == 3 and channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
        return (image * weights).sum(dim=-3, keepdim=True).round().to(torch.uint8)
    raise ValueError(f"{name} has {image.shape[-3]} channels, but --channels is {channels}")
