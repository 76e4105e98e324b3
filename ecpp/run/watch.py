"""What is measured after each epoch: kNN where there are labels, and health without any."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ecpp import distributed
from ecpp.config import Config
from ecpp.data import Images, Stream, subset
from ecpp.evaluate import features, knn_accuracy
from ecpp.method import Method
from ecpp.run import build
from ecpp.train.health import Record, measure
from ecpp.train.loop import autocast

KNN_IMAGES = 10_000  # at most, on either side
HEALTH_IMAGES = 1024
_FEW = 32  # images of which nothing can be said
_BATCH = 256


class Watch:
    """The measurements of a run, each a function of its method as it is."""

    def __init__(self, config: Config, method: Method, data: build.Data) -> None:
        self.config, self.method = config, method
        self.sides = _labelled_sides(config, data)
        self.held_out = data.held_out is not None
        self.stream = _fixed_views(config, data.train if data.held_out is None else data.held_out)

    def check_can_keep_best(self) -> None:
        """A measure that is never taken can have no best epoch."""
        if self.config.keep_best == "knn" and not self.sides:
            raise ValueError("--keep-best knn needs labels on training and held-out images: take rankme")
        if self.config.keep_best == "rankme" and self.stream is None:
            raise ValueError(
                f"--keep-best rankme needs at least {_FEW} images to measure: give more by --val"
            )

    def measure(self) -> Record:
        """All measurements, the same on every rank."""
        return self._health() | self._knn()

    def _knn(self) -> Record:
        """The ranks share the features, and the first one counts."""
        pairs: list[Tensor] = []
        for images in self.sides:
            f = features(
                self.method.encoder,
                images,
                build.build_preprocess(self.config),
                workers=self.config.workers or 0,
                bf16=self.config.precision == "bf16",
            )
            pairs += [f.values, images.labels[f.index]]  # type: ignore[index]
        return {"knn": distributed.first(lambda: knn_accuracy(*pairs))} if pairs else {}

    @torch.no_grad()
    def _health(self) -> Record:
        """The same two views of the same images every time, shared by the ranks."""
        if self.stream is None:
            return {}
        self.method.eval()
        parts: list[tuple[Tensor, ...]] = []
        for batch in self.stream.batches(0, self.stream.steps_per_epoch):
            with autocast(self.stream.device, self.config.precision):
                one, other = (self.method.encoder(batch.view(k)) for k in range(2))
                z = [self.method.projector(h) for h in (one, other)]
            parts.append(tuple(distributed.gather_rows(t.float()) for t in (one, *z)))
        self.method.train()
        return measure(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _labelled_sides(config: Config, data: build.Data) -> list[Images]:
    if data.held_out is None or data.held_out.labels is None or data.train.labels is None:
        return []
    return [subset(i, KNN_IMAGES, config.seed) for i in (data.train, data.held_out)]


def _fixed_views(config: Config, images: Images) -> Stream | None:
    """Two large views of a random subset of the images, in batches that all ranks can share."""
    chosen = subset(images, HEALTH_IMAGES, config.seed)
    world = distributed.world()
    size = min(_BATCH, len(chosen))
    size -= size % world
    if len(chosen) < _FEW or size < 2 * world:
        return None
    return Stream(
        chosen,
        build.build_plan(replace(config, views=2, n_simclr=2)),
        batch_size=size,
        seed=config.seed,
        workers=config.workers or 0,
        device=torch.device(config.device or "cpu"),
        rank=distributed.rank(),
        world=world,
        agree=distributed.anywhere,
        max_unreadable=1.0,
    )


def as_record(epoch: int, values: Record) -> dict[str, Any]:
    """Rounded as far as a float is good."""
    return {"epoch": epoch, **{k: float(f"{v:.6g}") for k, v in values.items()}}
