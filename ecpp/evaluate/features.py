"""Frozen features, each image once, in the order of the source."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ecpp import distributed
from ecpp.data import Images, Unreadable, by_workers, take
from ecpp.model import probe


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


@dataclass(frozen=True)
class Features:
    """What a frozen encoder gives for the images that can be read."""

    values: Tensor  # (m, D) in fp32 on the CPU
    index: Tensor  # (m,): which image each row is of, in order
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True)
class Batch:
    """A share of the images, ready for `normalise`."""

    images: Tensor  # uint8 (m, C, size, size)
    index: Tensor  # (m,)
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True)
class _Prepare:
    """A worker's share: the images of a batch that can be read, resized."""

    images: Images
    preprocess: Preprocess

    def __call__(self, keys: Sequence[int]) -> Batch:
        out, index, unreadable = [], [], []
        for i in keys:
            try:
                image = self.images.read(i)
            except Unreadable as e:
                unreadable.append(e)
                continue
            out.append(self.preprocess.geometry(image[None])[0])
            index.append(i)
        side = self.preprocess.size
        empty = torch.empty(0, self.images.channels, side, side, dtype=torch.uint8)
        return Batch(torch.stack(out) if out else empty, torch.tensor(index).long(), tuple(unreadable))


def batches(
    images: Images,
    preprocess: Preprocess,
    *,
    batch_size: int,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Batch]:
    """All images in order; of several ranks each gets every world-th batch."""
    decoded = images.in_memory()
    # Whole batches: an encoder's rounding may depend on how many images it sees together.
    parts = torch.split(torch.arange(len(images)), batch_size)[rank::world]
    if decoded is None:
        channel = preprocess.size**2 * batch_size
        yield from by_workers(
            _Prepare(images, preprocess),
            [part.tolist() for part in parts],
            workers=workers,
            batch_bytes=channel * images.channels,
        )
        return
    for part in parts:
        bad = [i for i in part.tolist() if i in decoded.unreadable] if decoded.unreadable else []
        if bad:
            part = part[~torch.isin(part, torch.tensor(bad))]
        yield Batch(
            preprocess.geometry(decoded.pixels[part]), part, tuple(decoded.unreadable[i] for i in bad)
        )


@torch.no_grad()
def features(
    encoder: nn.Module,
    images: Images,
    preprocess: Preprocess,
    *,
    batch_size: int = 256,
    workers: int = 0,
    bf16: bool = False,
) -> Features:
    """The output of the frozen encoder for every image that can be read, once; ranks share the work, each has all."""
    was_training = encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    rank, world = distributed.rank(), distributed.world()
    values, index = list[Tensor](), list[Tensor]()
    unreadable = list[Unreadable]()
    for part in batches(images, preprocess, batch_size=batch_size, workers=workers, rank=rank, world=world):
        unreadable += part.unreadable
        if len(part.index):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                values.append(encoder(preprocess.normalise(part.images.to(device))).float().cpu())
            index.append(part.index)
    if world > 1:
        width = values[0].shape[1] if values else probe(encoder, [preprocess.size], channels=images.channels)
        values = [distributed.gather_rows(torch.cat([torch.empty(0, width), *values]))]
        index = [distributed.gather_rows(torch.cat([torch.empty(0).long(), *index]))]
        unreadable = _gather_errors(unreadable)
        values, index = (values, index) if len(index[0]) else ([], [])
    encoder.train(was_training)
    if not values:
        raise ValueError(f"none of the {len(images)} images can be read, such as {unreadable[0]}")
    rows, place = torch.cat(values), torch.cat(index)
    if world > 1:
        order = place.argsort()
        rows, place = rows[order], place[order]
    return Features(rows, place, tuple(unreadable))


def _gather_errors(errors: list[Unreadable]) -> list[Unreadable]:
    """The errors of all ranks, sent as bytes."""
    lines = "".join(json.dumps([e.name, e.reason]) + "\n" for e in errors).encode()
    everyone = distributed.gather_rows(torch.tensor(list(lines), dtype=torch.uint8))
    return [Unreadable(*json.loads(line)) for line in bytes(everyone.tolist()).splitlines()]


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
    chosen = take(images, order[: count * 256])
    for part in batches(chosen, preprocess, batch_size=256, workers=workers):
        if len(part.images) > 1:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                encoder(preprocess.normalise(part.images.to(device)))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    encoder.eval()
