"""Which sample comes when, as rendered batches: a pure function of (seed, step), so any step can be next."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ecpp.data.ahead import ahead
from ecpp.data.crops import Cut, Cutter, Key
from ecpp.data.source import Images
from ecpp.data.unreadable import Unreadable
from ecpp.data.workers import by_workers
from ecpp.views import ViewBatch, ViewPlan, draw, finish, make
from ecpp.views.draws import to_device, uniform

_ORDER = -1  # the place of a view in the coordinates of a draw, where the order of an epoch is drawn
FEW = 16  # unreadable files that are borne in a source of any size
_LISTED = 20


class Stream:
    """Batches of K views. Every epoch is a new order of all images; the last few that fill no batch are left out.

    Small images of one size lie in memory and are rendered on `device`; others are decoded once for
    all views by `workers` processes, which send crops, and finished on `device`.

    Of `world` ranks each gets its share of a batch. An image that cannot be read is left out: one in memory
    before training, a file when it fails, and then of its batch on every rank alike, so that all shares
    stay equal: `agree` is given a row of booleans and says of each whether it is true on any rank. `report` is
    told once of each; when they are more than `max_unreadable` of all, and more than a few, the stream ends
    with their list.
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
        rank: int = 0,
        world: int = 1,
        agree: Callable[[Tensor], Tensor] = lambda failed: failed,
        report: Callable[[Unreadable], None] = lambda error: None,
        max_unreadable: float = 0.05,
        scaled: bool = False,
        kernel: str = "torch",
        start_method: str | None = None,
    ) -> None:
        self.images, self.plan, self.batch_size, self.seed = images, plan, batch_size, seed
        self.workers, self.device = workers, device or torch.device("cpu")
        self.rank, self.world, self.agree = rank, world, agree
        self.report, self.max_unreadable = report, max_unreadable
        self.scaled, self.kernel, self.start_method = scaled, kernel, start_method
        self.unreadable: dict[int, Unreadable] = {}
        if images.channels != len(plan.mean):
            raise ValueError(f"the images have {images.channels} channels, but the views {len(plan.mean)}")
        decoded = images.in_memory()
        self.pixels = None if decoded is None else decoded.pixels.to(self.device)
        self.usable = torch.arange(len(images))  # by their index: all images that may come
        if decoded is not None and decoded.unreadable:
            self.usable = torch.tensor([i for i in range(len(images)) if i not in decoded.unreadable])
            self._note(decoded.unreadable)
            if self._too_many():
                raise ValueError(self._sentence())
        self._check_batch()
        self._epoch, self._epoch_order = -1, torch.empty(0)  # the order that was last asked for

    def _check_batch(self) -> None:
        size = self.batch_size
        if size < 2:
            raise ValueError(f"a batch of {size} holds no negatives: take a batch size of at least 2")
        if size > len(self.usable):
            raise ValueError(
                f"a batch of {size} is larger than the {len(self.usable)} images: take a smaller batch size"
            )
        if size % self.world:
            raise ValueError(
                f"a batch of {size} cannot be shared by {self.world} ranks: take a multiple of that"
            )

    @property
    def steps_per_epoch(self) -> int:
        return len(self.usable) // self.batch_size

    def samples(self, step: int) -> Tensor:
        """This rank's images of one step, by index."""
        epoch, place = divmod(step, self.steps_per_epoch)
        share = self.batch_size // self.world
        start = place * self.batch_size + self.rank * share
        return self._order(epoch)[start : start + share]

    def _order(self, epoch: int) -> Tensor:
        if self._epoch != epoch:
            u = uniform(self.seed, epoch, self.usable, torch.tensor(_ORDER), torch.tensor(0))
            self._epoch, self._epoch_order = epoch, self.usable[u.argsort(stable=True)]
        return self._epoch_order

    def batches(self, start: int, stop: int) -> Iterator[ViewBatch]:
        """The batches of steps start, start + 1, … stop - 1."""
        batches = self._from_workers if self.pixels is None else self._from_memory
        return ahead(batches(start, stop), self.device)

    def _from_memory(self, start: int, stop: int) -> Iterator[ViewBatch]:
        for step in range(start, stop):
            samples = self.samples(step)
            pixels = torch.empty(0) if self.pixels is None else self.pixels
            images = pixels.index_select(0, to_device(samples, self.device))
            epoch = step // self.steps_per_epoch
            yield make(self.plan, images, samples, seed=self.seed, epoch=epoch, kernel=self.kernel)

    def _from_workers(self, start: int, stop: int) -> Iterator[ViewBatch]:
        cuts = by_workers(
            Cutter(self.images, self.plan, self.seed, self.scaled),
            (self._keys(step) for step in range(start, stop)),
            workers=self.workers,
            batch_bytes=self.batch_size // self.world * self.plan.pixels_per_image * self.images.channels,
            pinned=self.device.type == "cuda",
            start_method=self.start_method,
        )
        for cut in cuts:
            read = self._readable(cut)
            params = draw(self.plan, read.samples, read.sizes, seed=self.seed, epoch=read.epoch)
            crops = [c.to(self.device, non_blocking=True) for c in read.crops]
            yield finish(self.plan, crops, read.samples, params, kernel=self.kernel)

    def _keys(self, step: int) -> list[Key]:
        epoch = step // self.steps_per_epoch
        return [(epoch, i) for i in self.samples(step).tolist()]

    def _readable(self, cut: Cut) -> Cut:
        """The batch without what failed here, and what failed at the same places on other ranks."""
        mine = torch.zeros(len(cut.samples) + 1, dtype=torch.bool)
        mine[list(cut.unreadable)] = True
        self._note({int(cut.samples[place]): error for place, error in cut.unreadable.items()})
        mine[-1] = self._too_many()  # ranks must end together, or the others would wait for one that is gone
        agreed = self.agree(mine)
        if agreed[-1]:
            raise ValueError(self._sentence())
        kept = (~agreed[:-1]).nonzero()[:, 0]
        if len(kept) == len(cut.samples):
            return cut
        if len(kept) < 2:
            raise ValueError(
                f"of a batch of {len(cut.samples)} images {len(kept)} could be read: are the files still there?\n"
                + self._list()
            )
        return cut.keep(kept)

    def _note(self, errors: dict[int, Unreadable]) -> None:
        for sample, error in errors.items():
            if sample not in self.unreadable:
                self.unreadable[sample] = error
                self.report(error)

    @property
    def _most(self) -> float:
        return max(FEW, self.max_unreadable * len(self.images))

    def _too_many(self) -> bool:
        return len(self.unreadable) > self._most

    def _sentence(self) -> str:
        where = "" if self.world == 1 else f" (this is what rank {self.rank} of {self.world} met)"
        return (
            f"{len(self.unreadable):,} of {len(self.images):,} images cannot be read, and no more than "
            f"{self._most:,.0f} are borne{where}: mend them, or raise --max-unreadable. `ecpp scan` lists all; the "
            "first ones are\n" + self._list()
        )

    def _list(self) -> str:
        errors = list(self.unreadable.values())
        lines = [f"  {e.name}: {e.reason}" for e in errors[:_LISTED]]
        return "\n".join(lines + (["  …"] if len(errors) > _LISTED else []))
