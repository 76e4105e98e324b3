"""Which sample comes when, as rendered batches: a pure function of (seed, step), so any step can be next."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ecpp.data.source import Images
from ecpp.views import ViewBatch, ViewPlan, draw, finish, make
from ecpp.views.draws import uniform
from ecpp.views.render import crop_views

_ORDER = -1  # the place of a view in the coordinates of a draw, where the order of an epoch is drawn


class Stream:
    """Batches of K views. Every epoch is a new order of all images; the last few that fill no batch are left out.

    Small images of one size lie in memory and are rendered on `device`; others are decoded once for
    all views by `workers` processes, which send crops, and finished on `device`.
    """

    def __init__(
        self,
        images: Images,
        plan: ViewPlan,
        *,
        batch_size: int,
        seed: int,
        workers: int = 0,
        device: torch.device | None = None,
    ) -> None:
        if batch_size < 2:
            raise ValueError(f"a batch of {batch_size} holds no negatives: take a batch size of at least 2")
        if batch_size > len(images):
            raise ValueError(
                f"a batch of {batch_size} is larger than the {len(images)} images: take a smaller batch size"
            )
        self.images, self.plan, self.batch_size, self.seed = images, plan, batch_size, seed
        self.workers, self.device = workers, device or torch.device("cpu")
        pixels = images.in_memory()
        self.pixels = None if pixels is None else pixels.to(self.device)
        self._epoch, self._epoch_order = -1, torch.empty(0)  # the order that was last asked for

    @property
    def steps_per_epoch(self) -> int:
        return len(self.images) // self.batch_size

    def samples(self, step: int) -> Tensor:
        """The images of one step, by index."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    def _order(self, epoch: int) -> Tensor:
        if self._epoch != epoch:
            u = uniform(
                self.seed, epoch, torch.arange(len(self.images)), torch.tensor(_ORDER), torch.tensor(0)
            )
            self._epoch, self._epoch_order = epoch, u.argsort(stable=True)
        return self._epoch_order

    def batches(self, start: int, stop: int) -> Iterator[ViewBatch]:
        """The batches of steps start, start + 1, … stop - 1."""
        if self.pixels is None:
            yield from self._from_workers(start, stop)
            return
        for step in range(start, stop):
            samples = self.samples(step)
            images = self.pixels[samples.to(self.device, non_blocking=True)]
            yield make(self.plan, images, samples, seed=self.seed, epoch=step // self.steps_per_epoch)

    def _from_workers(self, start: int, stop: int) -> Iterator[ViewBatch]:
        pinned = self.device.type == "cuda"
        loader = DataLoader(
            _Crops(self.images, self.plan, self.seed),
            batch_sampler=_Steps(self, start, stop),
            num_workers=self.workers,
            collate_fn=_collate,
            worker_init_fn=_one_thread,
            pin_memory=pinned,
            generator=torch.Generator(),  # the global one belongs to the model
        )
        for batch in loader:
            if isinstance(batch, ValueError):
                raise batch
            epoch, samples, sizes, crops = batch
            params = draw(self.plan, samples, sizes, seed=self.seed, epoch=epoch)
            crops = [c.to(self.device, non_blocking=pinned) for c in crops]
            yield finish(self.plan, crops, samples, params)


_Key = tuple[int, int]  # (epoch, sample)
_Item = tuple[int, int, Tensor, list[Tensor]]  # epoch, sample, (height, width), crops per resolution


class _Steps(Sampler[list[_Key]]):
    def __init__(self, stream: Stream, start: int, stop: int) -> None:
        self.stream, self.range = stream, range(start, stop)

    def __len__(self) -> int:
        return len(self.range)

    def __iter__(self) -> Iterator[list[_Key]]:
        for step in self.range:
            epoch = step // self.stream.steps_per_epoch
            yield [(epoch, i) for i in self.stream.samples(step).tolist()]


class _Crops(Dataset[_Item | ValueError]):
    """A worker's share: one file, decoded once, cut into all its views."""

    def __init__(self, images: Images, plan: ViewPlan, seed: int) -> None:
        self.images, self.plan, self.seed = images, plan, seed

    def __getitem__(self, key: _Key) -> _Item | ValueError:
        epoch, sample = key
        try:
            image = self.images.read(sample)
        except ValueError as e:
            return e  # raised in the main process, as one sentence and not as a worker's traceback
        size = torch.tensor(image.shape[1:])
        params = draw(self.plan, torch.tensor([sample]), size[None], seed=self.seed, epoch=epoch)
        return epoch, sample, size, crop_views(self.plan, image, params)


def _collate(items: list[_Item | ValueError]) -> tuple[int, Tensor, Tensor, list[Tensor]] | ValueError:
    for item in items:
        if isinstance(item, ValueError):
            return item
    read = [item for item in items if not isinstance(item, ValueError)]
    epochs, samples, sizes, crops = zip(*read, strict=True)
    groups = [torch.stack(parts, dim=1) for parts in zip(*crops, strict=True)]  # (V, N, C, S, S) each
    return epochs[0], torch.tensor(samples), torch.stack(sizes), groups


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)  # the workers share the cores with the encoder
