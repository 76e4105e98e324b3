"""A worker's share of the views: each file decoded once and cut into all its views."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ecpp.data.decode import Encoded
from ecpp.data.source import Images
from ecpp.data.unreadable import Unreadable
from ecpp.views import ViewPlan
from ecpp.views.draws import geometry, numbers
from ecpp.views.render import crop_views, empty_crops, reduction

Key = tuple[int, int]  # (epoch, sample)


class Cut(NamedTuple):
    """The crops of a batch. Those of images that could not be read hold anything."""

    epoch: int
    samples: Tensor  # (N,)
    sizes: Tensor  # (N, 2): height and width of the images
    crops: list[Tensor]  # uint8 (V, N, C, S, S) per resolution
    unreadable: dict[int, Unreadable]  # by position in the batch

    def keep(self, places: Tensor) -> "Cut":
        """Some of the images."""
        crops = [c[:, places] for c in self.crops]
        return Cut(self.epoch, self.samples[places], self.sizes[places], crops, {})


@dataclass(frozen=True)
class Cutter:
    """`scaled` decodes JPEGs at a half, a quarter or an eighth of their size where no view needs more."""

    images: Images
    plan: ViewPlan
    seed: int
    scaled: bool = False

    def __call__(self, keys: Sequence[Key]) -> Cut:
        epoch = keys[0][0]
        samples = torch.tensor([sample for _, sample in keys])
        u = numbers(self.plan, samples, seed=self.seed, epoch=epoch)  # (K, N, slots)
        sizes = torch.ones(len(keys), 2, dtype=torch.int64)
        crops = empty_crops(self.plan, len(keys))
        unreadable = {}
        for n, (_, sample) in enumerate(keys):
            try:
                sizes[n] = self._cut(sample, u[:, n : n + 1], [c[:, n] for c in crops])
            except Unreadable as e:
                unreadable[n] = e
        return Cut(epoch, samples, sizes, crops, unreadable)

    def _cut(self, sample: int, u: Tensor, out: list[Tensor]) -> Tensor:
        """One image's crops into `out`; the image's size."""
        data = self.images.encoded(sample) if self.scaled else None
        if data is None:
            image = self.images.read(sample)
            size = torch.tensor(image.shape[1:])
            boxes, flip = geometry(self.plan, u, size[None])
        else:
            encoded = Encoded(data, self.images.name(sample), channels=self.images.channels)
            size = torch.tensor(encoded.size)
            boxes, flip = geometry(self.plan, u, size[None])
            image = encoded.decode(reduction(self.plan, boxes[:, 0]))
        crop_views(self.plan, image, size, boxes[:, 0], flip[:, 0], out)
        return size
