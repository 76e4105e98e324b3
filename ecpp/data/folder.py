"""Any folder of images: recursive, with or without class folders, with or without splits."""

import os
from collections import Counter
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ecpp.data.source import Splits, check_classes, decode_all

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
HELD_OUT = ("test", "val", "valid", "validation")


class Folder:
    """The images below one folder, in the order of their paths; class = the folder directly below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files, self.left_out = _walk(root)
        if not self.files:
            known = " ".join(sorted(EXTENSIONS))
            raise ValueError(f"no images below {root}: looked for files that end in {known}")
        tops = [f.split("/", 1)[0] if "/" in f else "" for f in self.files]
        self.classes = tuple(sorted(set(tops)))
        self.labels: Tensor | None = None
        if "" in self.classes or len(self.classes) < 2:  # images beside the folders: these are no classes
            self.classes = ()
        else:
            number = {c: i for i, c in enumerate(self.classes)}
            self.labels = torch.tensor([number[t] for t in tops])

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return self.files[index]

    def read(self, index: int) -> Tensor:
        return decode(self.root / self.files[index])

    def in_memory(self) -> Tensor | None:
        return self._pixels

    @cached_property
    def _pixels(self) -> Tensor | None:
        return decode_all(self)


def _walk(root: Path) -> tuple[list[str], Counter[str]]:
    """Sorted paths of image files relative to `root`, with forward slashes; and the endings of all other files.

    Hidden files and folders do not count. Links to folders are followed, save those that lead back to a
    folder above them.
    """
    found: list[str] = []
    others: Counter[str] = Counter()
    for folder, below, files in os.walk(root, onerror=_refuse, followlinks=True):
        below[:] = [d for d in below if not (d.startswith(".") or _leads_back(Path(folder, d)))]
        here = Path(folder).relative_to(root).as_posix()
        prefix = "" if here == "." else f"{here}/"
        for name in files:
            ending = os.path.splitext(name)[1].lower()
            if name.startswith("."):
                continue
            if ending in EXTENSIONS:
                found.append(prefix + name)
            else:
                others[ending or "without ending"] += 1
    return sorted(found), others


def _refuse(error: OSError) -> None:
    raise ValueError(f"cannot look into the folder {error.filename}: {error.strerror}") from error


def _leads_back(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def decode(file: Path) -> Tensor:
    """One file as uint8 (3, H, W), upright as its EXIF says."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not file.is_file():
        raise ValueError(f"cannot read the image {file}: it is no regular file. Take it out of the folder")
    try:
        with Image.open(file) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I;16") or (image.mode == "I" and opened.format in ("PNG", "PPM")):
                # Sixteen bits of grey, which PIL's own conversion would cut off at 255.
                image = image.convert("I").point(lambda v: v / 257 + 0.5).convert("L")
            image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as e:
        raise ValueError(f"cannot read the image {file}: {e}. Mend it or take it out of the folder") from e
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, 3).permute(2, 0, 1)


def open_folder(root: Path) -> Splits:
    """A folder with `train/` and `test/` (or `val/`) is split by them; any other is all for training."""
    if not root.exists():
        raise FileNotFoundError(
            f"there is no folder {root}. A source is a folder of images, patterns or torchvision:NAME"
        )
    if not root.is_dir():
        raise ValueError(f"{root} is a file: give the folder that holds the images")
    held_out = [root / name for name in HELD_OUT if (root / name).is_dir()]
    if not ((root / "train").is_dir() and held_out):
        images = Folder(root)
        if {f.split("/", 1)[0] for f in images.files} == {"train"}:  # the classes lie one level deeper
            images = Folder(root / "train")
        return Splits(images, None, _notes(images))
    train, test = Folder(root / "train"), Folder(held_out[0])
    check_classes(train, test)
    return Splits(train, test, _notes(train) + _notes(test))


def _notes(images: Folder) -> tuple[str, ...]:
    if not images.left_out:
        return ()
    kinds = ", ".join(f"{n:,} {ending}" for ending, n in images.left_out.most_common(6))
    return (f"left out in {images.root}, as they do not end like an image: {kinds}",)
