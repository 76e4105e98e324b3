"""Pictures made of random numbers, as tensors, files and sources."""

import os
import socket
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from ecpp.data.source import Decoded


def picture(height=12, width=10, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=g, dtype=torch.uint8)


def as_pil(image):
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def save(file, image=None, **options):
    """One picture as a file; what it shows follows from the file's name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = picture(seed=sum(map(ord, file.name))) if image is None else image
    as_pil(image).save(file, **options)
    return image


def fill(root, *names):
    return {name: save(root / name) for name in names}


@dataclass
class Pictures:
    """A source made of tensors."""

    images: list
    labels: torch.Tensor | None = None
    memory: bool = True
    classes: tuple = ()
    channels: int = 3

    def __len__(self):
        return len(self.images)

    def name(self, index):
        return f"picture {index}"

    def read(self, index):
        return self.images[index]

    def in_memory(self):
        return Decoded(torch.stack(self.images), {}) if self.memory else None

    def encoded(self, index):
        return None


# --- the real world -------------------------------------------------------------------------------------


def odd_folder(root, *, large=(4000, 5000)):
    """A folder with everything that people have; (names that can be read, reasons of the others by name)."""
    waves = np.indices((150, 130)).transpose(1, 2, 0) @ np.array([[3, 1, 2], [1, 4, 2]])
    rgb = Image.fromarray((waves % 256).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    wide = Image.fromarray((waves[..., 0] * 80).astype(np.uint16))
    clear = Image.merge("RGBA", (*rgb.split(), rgb.split()[0]))
    saved = {
        "grey.png": (rgb.convert("L"), {}),
        "palette.gif": (rgb.quantize(64), {}),
        "palette, clear.png": (rgb.quantize(64), {"transparency": 3}),
        "clear.png": (clear, {}),
        "clear grey.png": (clear.convert("LA"), {}),
        "clear.webp": (clear, {}),
        "black and white.bmp": (rgb.convert("1"), {}),
        "cmyk.jpg": (rgb.convert("CMYK"), {}),
        "sixteen.png": (wide, {}),
        "sixteen.tif": (wide, {}),
        "frames.gif": (rgb.quantize(64), {"save_all": True, "append_images": [rgb.rotate(90).quantize(64)]}),
        "frames.webp": (rgb, {"save_all": True, "append_images": [rgb.rotate(90)]}),
        "turned.jpg": (rgb, {"exif": exif}),
        "one row.png": (rgb.crop((0, 0, 130, 1)), {}),
        "one column.jpg": (rgb.crop((0, 0, 1, 150)), {}),
        "large.jpg": (rgb.resize(large[::-1]), {"quality": 60}),
        "deep/er/and/deeper/PHOTO.JPEG": (rgb, {}),
        "x.png/inside.png": (rgb, {}),
        "\u732b \u043a\u043e\u0442 \u0642\u0637.png": (rgb, {}),
        "two\nlines.png": (rgb, {}),
    }
    for name, (image, options) in saved.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / name, **options)
    with open(os.fsencode(root) + b"/no \xff utf-8.png", "wb") as file:
        rgb.save(file, "PNG")
    (root / "linked.jpg").symlink_to("turned.jpg")
    (root / "linked folder").symlink_to("deep")
    (root / "deep" / "up").symlink_to(root)
    good = {
        *(name.replace("\n", "\\n") for name in saved),
        "no \\xff utf-8.png",
        "linked.jpg",
        "linked folder/er/and/deeper/PHOTO.JPEG",
    }
    return good, _bad_files(root)


def _bad_files(root):
    whole = (root / "turned.jpg").read_bytes(), (root / "clear.png").read_bytes()
    for name, data in {
        "cut.jpg": whole[0][:-300],
        "cut.png": whole[1][: len(whole[1]) // 2],
        "only a beginning.jpg": whole[0][:20],
        "empty.png": b"",
        "text.jpg": b"these are words",
        "script.tif": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    }.items():
        (root / name).write_bytes(data)
    Image.new("1", (20_000, 20_000)).save(root / "bomb.png")
    (root / "loop.png").symlink_to("loop.png")
    (root / "nowhere.jpg").symlink_to("absent.jpg")
    os.mkfifo(root / "pipe.jpg")
    here = os.getcwd()
    os.chdir(root)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.jpg")
    os.chdir(here)
    return {
        "cut.jpg": "truncated",
        "cut.png": "truncated",
        "only a beginning.jpg": "",
        "empty.png": "the file is empty",
        "text.jpg": "no image of a known kind",
        "script.tif": "no image of a known kind",
        "bomb.png": "which may be an attack",
        "loop.png": "Too many levels",
        "nowhere.jpg": "No such file",
        "pipe.jpg": "no regular file",
        "socket.jpg": "no regular file",
    }
