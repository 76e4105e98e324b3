"""Labelled images, and the means to ask an encoder about them: features once, streams of augmented views."""

from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ecpp.config import Config
from ecpp.data import Images, Stream, check_classes, subset, take
from ecpp.evaluate import FeatureCache, Preprocess, Score, Sides, calibrate, features, score
from ecpp.evaluate.cache import hash_images, hash_weights
from ecpp.run import build
from ecpp.run.resolve import precision_on
from ecpp.views import View, ViewPlan

_CROP = (0.08, 1.0)  # torchvision's default, as in the evaluations of the field


class Asked(NamedTuple):
    """The features of both sides, and the seconds that they took when they were computed."""

    sides: Sides
    seconds: float
    unreadable: int


@dataclass(frozen=True)
class Bench:
    """Where encoders of one config are judged."""

    config: Config
    source: str
    val: str | None
    train: Images
    test: Images
    device: torch.device
    workers: int
    cache: FeatureCache

    @property
    def classes(self) -> int:
        return len(self.train.classes)

    @property
    def bf16(self) -> bool:
        return self.config.precision == "bf16" and self.native_bf16

    @property
    def native_bf16(self) -> bool:
        return precision_on(str(self.device)) == "bf16"

    @cached_property
    def preprocess(self) -> Preprocess:
        return build.build_preprocess(self.config)

    @cached_property
    def _images(self) -> tuple[str, str]:
        return hash_images(self.train), hash_images(self.test)

    def place(self, net: nn.Module) -> nn.Module:
        return net.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def calibrate(self, net: nn.Module) -> nn.Module:
        """BatchNorm statistics of un-augmented training images, as the probes see them."""
        net = self.place(net)
        calibrate(
            net,
            self.train,
            self.preprocess,
            seed=self.config.seed,
            workers=self.workers,
            bf16=self.bf16,
        )
        return net

    def untrained(self) -> nn.Module:
        """The encoder with the weights that its seed gave it."""
        with torch.random.fork_rng(devices=[]):
            return self.place(build.build_encoder(self.config))

    def ask(self, net: nn.Module) -> Asked:
        """The frozen features of all images that can be read, each once."""
        weights = hash_weights(net)
        net = self.place(net)
        seconds, unreadable, parts = 0.0, 0, []
        for images, content in zip((self.train, self.test), self._images, strict=True):
            key = {
                "weights": weights,
                "images": content,
                "preprocess": asdict(self.preprocess),
                "bf16": self.bf16,
                "device": self.device.type,
                "threads": torch.get_num_threads(),  # they change the rounding
            }

            compute = partial(features, net, images, self.preprocess, workers=self.workers, bf16=self.bf16)
            found = self.cache.get(key, len(images), compute)
            seconds += found.seconds
            unreadable += len(found.features.unreadable)
            labels = images.labels[found.features.index]  # type: ignore[index]
            parts += [self._near(found.features.values), self._near(labels)]
        train, y, test, truth = parts
        return Asked(Sides(train, y, test, truth, self.classes), seconds, unreadable)

    def _near(self, x: Tensor) -> Tensor:
        """On the GPU where it leaves room for the work itself."""
        if self.device.type == "cuda" and x.nbytes < torch.cuda.mem_get_info(self.device)[0] // 4:
            return x.to(self.device)
        return x

    def augmented(self, *, batch_size: int, rows: Tensor | None = None) -> Stream:
        """Training images (or some of them), cropped and flipped anew in every epoch."""
        images = self.train if rows is None else take(self.train, rows)
        crop = View(self.preprocess.size, _CROP, flip_p=0.5)
        return Stream(
            images,
            ViewPlan((crop,), self.preprocess.mean, self.preprocess.std),
            batch_size=min(batch_size, len(images)),
            seed=self.config.seed,
            workers=self.workers,
            device=self.device,
            max_unreadable=self.config.max_unreadable,
        )

    def count(self, model: nn.Module) -> Score:
        """What a whole classifier gets right of the test images."""
        found = features(model, self.test, self.preprocess, workers=self.workers, bf16=self.bf16)
        return score(found.values, self.test.labels[found.index])  # type: ignore[index]


def open_bench(
    config: Config,
    source: str | None,
    val: str | None,
    limit: int | None,
    *,
    device: str,
    workers: int,
    cache: FeatureCache,
) -> Bench:
    """Training and held-out images, both with labels, or a sentence on what is missing."""
    name = source or config.source
    splits = build.open_images(config, name)
    val = val or (config.val if source is None else None)
    test = build.held_out_images(build.open_images(config, val)) if val else splits.test
    if splits.train.labels is None:
        raise ValueError(
            f"{name} has no labels, which accuracies need: give a source with one folder per class, as in "
            "`ecpp evaluate RUN SOURCE`"
        )
    if test is None or test.labels is None:
        raise ValueError(
            f"{name} has no labelled images to count on: put them into train/ and test/ folders, "
            "or name others by --val"
        )
    check_classes(splits.train, test)
    train = subset(splits.train, limit, config.seed)
    return Bench(config, name, val, train, test, torch.device(device), workers, cache)
