"""Pictures made of random numbers, as tensors, files and sources."""

from dataclasses import dataclass

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
