"""A worker's share of the views: each file decoded once and cut into all its views."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ecpp.data.decode import Encoded
from ecpp.data.source import Images
from ecpp.data.unreadable import Unreadable
from ecpp.views import ViewPlan
from ecpp.views.draws import geometry, numbers
from ecpp.views.render import crop_views, empty_crops, reduction

Key = tuple[int, int]  # (epoch, sample)
_HELD = 1 << 24  # bytes of images that are held until they are cut


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
        if get_worker_info() is not None:
            # They go there anyway. Among the images on the heap they leave holes, and the worker grows for epochs.
            crops = [c.share_memory_() for c in crops]  # type: ignore[no-untyped-call]
        unreadable: dict[int, Unreadable] = {}
        waiting: dict[
            int, Tensor | Encoded
        ] = {}  # by position; their boxes are drawn together, which is faster
        held = 0
        for n, (_, sample) in enumerate(keys):
            try:
                waiting[n] = image = self._open(sample)
            except Unreadable as e:
                unreadable[n] = e
                continue
            sizes[n] = torch.tensor(image.size if isinstance(image, Encoded) else image.shape[1:])
            held += len(image.data) if isinstance(image, Encoded) else image.nbytes
            if held > _HELD:
                unreadable |= self._cut(waiting, u, sizes, crops)
                waiting, held = {}, 0
        unreadable |= self._cut(waiting, u, sizes, crops)
        return Cut(epoch, samples, sizes, crops, unreadable)

    def _open(self, sample: int) -> Tensor | Encoded:
        """The pixels of an image or, where it may be decoded smaller, its header alone."""
        data = self.images.encoded(sample) if self.scaled else None
        if data is None:
            return self.images.read(sample)
        return Encoded(data, self.images.name(sample), channels=self.images.channels)

    def _cut(
        self, images: dict[int, Tensor | Encoded], u: Tensor, sizes: Tensor, crops: list[Tensor]
    ) -> dict[int, Unreadable]:
        """The crops of some images, by position, to their places in `crops`; returns those that could not be read."""
        places = torch.tensor(list(images), dtype=torch.int64)
        boxes, flip = geometry(self.plan, u[:, places], sizes[places])
        unreadable = {}
        for i, (n, image) in enumerate(images.items()):
            try:
                pixels = (
                    image.decode(reduction(self.plan, boxes[:, i])) if isinstance(image, Encoded) else image
                )
            except Unreadable as e:
                unreadable[n] = e
                continue
            crop_views(self.plan, pixels, sizes[n], boxes[:, i], flip[:, i], [c[:, n] for c in crops])
        return unreadable
