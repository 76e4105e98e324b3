"""Pack a source: every image decoded once and written into one store that opens in a second, see `packed`."""

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from ecpp.data.decode import open_image
from ecpp.data.each import each
from ecpp.data.packed import ABOUT, FORMAT, LEFT_OUT, VERSION, PackImages, is_pack, open_pack
from ecpp.data.source import IN_MEMORY_SIDE, Images, open_source
from ecpp.data.unreadable import Unreadable
from ecpp.data.writer import SplitWriter, Stored

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PackImages", "PackReport", "is_pack", "open_pack", "pack"]

STORES = ("pixels", "jpeg")
_JPEG_SIDE = 65_500  # no JPEG is larger
_LOOKED_AT = 16  # images that tell whether a source is one of small images
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class PackReport:
    """What was written: the images of each split, the bytes of all files, and what was left out."""

    store: str
    counts: dict[str, int]
    bytes: int
    unreadable: list[dict[str, str]]  # the split, name and reason of each
    notes: tuple[str, ...]  # the source's


def pack(
    source: str,
    dst: Path,
    *,
    store: str | None = None,
    side: int | None = None,
    quality: int = 95,
    channels: int = 3,
    classes: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PackReport:
    """Write a source into the folder `dst`, which appears when it is complete.

    `store` is pixels or jpeg; None takes pixels for small images and jpeg for others. `side` caps the shorter side.
    """
    _check(dst, store, side, quality, channels)
    splits = open_source(source, channels=channels, classes=classes)
    parts = {"train": splits.train} if splits.test is None else {"train": splits.train, "test": splits.test}
    store = store or _default_store(splits.train, side)
    total, done = sum(map(len, parts.values())), 0
    about: dict[str, dict[str, Any]] = {}
    unreadable: list[dict[str, str]] = []
    partial = dst.with_name(f"{dst.name}.partial-{os.getpid()}")
    _make(partial)
    try:
        for name, images in parts.items():
            (partial / name).mkdir()
            with ExitStack() as files:
                writer = SplitWriter(partial / name, images, store, files)
                for i, result in enumerate(each(images, _Prepare(store, side, quality), workers=workers)):
                    writer.add(i, result)
                    done += 1
                    if progress is not None:
                        progress(done, total)
                about[name] = writer.close()
            if not writer.count:
                raise ValueError(
                    f"none of the {len(images):,} images of {name} in {source} can be read, such as "
                    f"{writer.bad[0][0]}: {writer.bad[0][1]}"
                )
            unreadable += [{"split": name, "name": n, "reason": reason} for n, reason in writer.bad]
            _sync(partial / name)
        _write_json(partial / LEFT_OUT, unreadable)
        options = {"source": source, "store": store, "side": side, "quality": quality, "channels": channels}
        _write_json(partial / ABOUT, {"format": FORMAT, "version": VERSION, **options, "splits": about})
        size = sum(file.stat().st_size for file in partial.rglob("*.*"))
        _sync(partial)
        os.rename(partial, dst)
        _sync(dst.parent)
    except OSError as e:
        if e.errno in _FULL:
            raise OSError(
                f"no room to pack {source} into {dst}: what was written is removed again. Free some, or take a "
                "smaller --side or --store jpeg"
            ) from e
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after a success it has another name
    counts = {name: split["count"] for name, split in about.items()}
    return PackReport(store, counts, size, unreadable, splits.notes)


def _check(dst: Path, store: str | None, side: int | None, quality: int, channels: int) -> None:
    if os.path.lexists(dst):
        raise ValueError(f"{dst} exists already: pack into a new folder, or remove it first")
    if store not in (None, *STORES):
        raise ValueError(f"--store must be one of {', '.join(STORES)}, but is {store!r}")
    if side is not None and side < 1:
        raise ValueError(f"--side is {side}: give the shorter side of the largest images, in pixels")
    if not 1 <= quality <= 100:
        raise ValueError(f"--quality is {quality}: JPEG knows 1 to 100")
    if store == "jpeg" and channels not in (1, 3):
        raise ValueError(f"a JPEG has 1 or 3 channels, but --channels is {channels}: take --store pixels")


def _default_store(images: Images, side: int | None) -> str:
    """pixels if some images from everywhere in the split are small, or no JPEG could hold them."""
    if images.channels not in (1, 3):
        return "pixels"
    largest = None
    for i in range(0, len(images), max(1, len(images) // _LOOKED_AT)):
        try:
            here = max(_capped(images.read(i), side))
        except Unreadable:
            continue  # it is reported when its turn comes
        largest = max(here, largest or 0)
    return "pixels" if largest is not None and largest <= IN_MEMORY_SIDE else "jpeg"


@dataclass(frozen=True)
class _Prepare:
    """A worker's share: an image as it is stored."""

    store: str
    side: int | None
    quality: int

    def __call__(self, images: Images, index: int) -> Stored:
        image = images.read(index)
        height, width = _capped(image, self.side)
        smaller = height < image.shape[1] or width < image.shape[2]
        if self.store == "jpeg" and not smaller:
            data = images.encoded(index)
            if data is not None and _upright_jpeg(data):
                return Stored(height, width, data)
        if smaller:
            image = F.interpolate(image[None], (height, width), mode="bilinear", antialias=True)[0]
        pixels = image.permute(1, 2, 0).contiguous().numpy()  # (H, W, C)
        if self.store == "pixels":
            return Stored(height, width, pixels.tobytes())
        if max(height, width) > _JPEG_SIDE:
            reason = f"it has {width}×{height} pixels, and a JPEG has no side above {_JPEG_SIDE}"
            raise Unreadable(images.name(index), reason)
        return Stored(height, width, _jpeg(pixels, self.quality))


def _capped(image: Tensor, side: int | None) -> tuple[int, int]:
    """The height and width of an image (C, H, W) after its shorter side was brought down to `side`."""
    height, width = image.shape[1:]
    short = min(height, width)
    if side is None or short <= side:
        return height, width
    return round(height * side / short), round(width * side / short)


def _upright_jpeg(data: bytes) -> bool:
    """Whether any decoder of JPEGs gives what was read: upright, and grey or RGB."""
    if not data.startswith(b"\xff\xd8"):
        return False
    with open_image(data) as image:
        return image.mode in ("RGB", "L") and image.getexif().get(0x0112) not in range(2, 9)  # orientation


def _jpeg(pixels: "np.ndarray[Any, Any]", quality: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.save(out, "JPEG", quality=quality, subsampling=0)  # 4:4:4: colour as fine as brightness
    return out.getvalue()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(f"{folder} is left from a process that was killed: remove it") from None
    except OSError as e:
        raise ValueError(f"cannot make the folder {folder}: {e.strerror}") from e


def _write_json(path: Path, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """See the entries of a folder to the disk, where the system has a call for that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
