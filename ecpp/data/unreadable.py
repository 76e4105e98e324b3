"""An image that cannot be decoded: one kind of error, whatever its decoder raised."""

import lzma
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager


class Unreadable(ValueError):
    """One image cannot be decoded. The sentence names it and says why; `reason` is the second part alone."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"cannot read the image {name}: {reason}. Mend it or take it out")
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[type["Unreadable"], tuple[str, str]]:
        return Unreadable, (self.name, self.reason)  # workers send it to the main process


@contextmanager
def named(name: str) -> Iterator[None]:
    """Whatever PIL raises over damaged bytes, as one sentence that names the image."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError:
        raise Unreadable(name, "its bytes are no image of a known kind") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable(
            name, f"it unpacks to more than {most_pixels():,} pixels, which may be an attack"
        ) from None
    except _FAILURES as e:
        raise Unreadable(name, str(e).strip().split("\n")[0][:200] or type(e).__name__) from e


# What decoders raise when they meet bytes that they did not expect.
_FAILURES = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError,
             MemoryError, AssertionError, RuntimeError, struct.error, zlib.error, lzma.LZMAError)  # fmt: skip


def most_pixels() -> int:
    """Pixels of the largest image that is opened: PIL's own limit, which a person may move."""
    from PIL import Image

    return Image.MAX_IMAGE_PIXELS or 1 << 62
