"""Frozen features, each image once, in the order of the source."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ecpp.data import Images, Subset


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes an encoder's input, without augmentation.

    Up to 64 px the whole image is resized; above, the shorter side becomes 256/224 of `size` and the
    centre is cut out, as is usual for ImageNet.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def geometry(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) to uint8 (N, C, size, size)."""
        height, width = images.shape[2:]
        if (height, width) == (self.size, self.size):
            return images
        if self.size <= 64:
            return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
        # Rounded as torchvision's Resize and CenterCrop do: a pixel beside them is another picture.
        short = round(self.size * 256 / 224)
        sides = [short * side // min(height, width) for side in (height, width)]
        images = F.interpolate(images, sides, mode="bilinear", antialias=True)
        top, left = (round((side - self.size) / 2) for side in sides)
        return images[..., top : top + self.size, left : left + self.size]

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 to normalised float, channels last in memory."""
        x = images.float().div_(255).contiguous(memory_format=torch.channels_last)
        for c, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            x[:, c].sub_(mean).div_(std)
        return x


class _Prepared(Dataset[Tensor | ValueError]):
    def __init__(self, images: Images, preprocess: Preprocess) -> None:
        self.images, self.preprocess = images, preprocess

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor | ValueError:
        try:
            return self.preprocess.geometry(self.images.read(index)[None])[0]
        except ValueError as e:
            return e  # raised in the main process, as one sentence and not as a worker's traceback


def _collate(items: list[Tensor | ValueError]) -> Tensor | ValueError:
    wrong = [item for item in items if isinstance(item, ValueError)]
    return wrong[0] if wrong else torch.stack([item for item in items if isinstance(item, Tensor)])


def batches(images: Images, preprocess: Preprocess, *, batch_size: int, workers: int = 0) -> Iterator[Tensor]:
    """All images in order, uint8 (N, C, size, size)."""
    pixels = images.in_memory()
    if pixels is not None:
        for part in torch.split(pixels, batch_size):
            yield preprocess.geometry(part)
        return
    loader = DataLoader(
        _Prepared(images, preprocess),
        batch_size,
        num_workers=workers,
        collate_fn=_collate,
        generator=torch.Generator(),
    )
    for part in loader:
        if isinstance(part, ValueError):
            raise part
        yield part


@torch.no_grad()
def features(
    encoder: nn.Module,
    images: Images,
    preprocess: Preprocess,
    *,
    batch_size: int = 256,
    workers: int = 0,
    bf16: bool = False,
) -> Tensor:
    """(n, D) in fp32 on the CPU: the output of the frozen encoder for every image, by its index."""
    was_training = encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    out: list[Tensor] = []
    for part in batches(images, preprocess, batch_size=batch_size, workers=workers):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            out.append(encoder(preprocess.normalise(part.to(device))).float().cpu())
    encoder.train(was_training)
    return torch.cat(out)


@torch.no_grad()
def calibrate(
    encoder: nn.Module,
    images: Images,
    preprocess: Preprocess,
    *,
    count: int = 50,
    seed: int = 0,
    workers: int = 0,
    bf16: bool = False,
) -> None:
    """Set the BatchNorm statistics of an untrained encoder to their mean over random batches of images.

    Random, because a folder is sorted by class: in its order a batch would hold one class alone.
    """
    norms = [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # a plain mean over all batches
    encoder.train()
    device = next(encoder.parameters()).device
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    chosen = Subset(images, order[: count * 256])
    for part in batches(chosen, preprocess, batch_size=256, workers=workers):
        if len(part) > 1:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                encoder(preprocess.normalise(part.to(device)))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    encoder.eval()
