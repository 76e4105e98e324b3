"""From a resolved config to objects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ecpp import distributed
from ecpp.config import Config
from ecpp.data import Images, Splits, Stream, Unreadable, check_classes, open_source, subset
from ecpp.evaluate import Preprocess
from ecpp.method import METHODS, Method
from ecpp.model import create_encoder, probe, shrinks_to_a_pixel
from ecpp.model.recompute import recompute_blocks
from ecpp.objective.pairs import GRAPHS, count
from ecpp.views import ViewPlan, plan
from ecpp.views.compiled import available as why_not_compiled
from ecpp.views.plan import LOOKS, Look


@dataclass(frozen=True)
class Data:
    """The images of a run: those it learns from, and held-out ones if there are any."""

    train: Images
    held_out: Images | None
    notes: tuple[str, ...] = ()


def open_data(config: Config) -> Data:
    """The source of a config, cut to its limit."""
    splits = open_images(config, config.source)
    held_out = splits.test
    if config.val is not None:
        held_out = held_out_images(open_images(config, config.val))
    if splits.train.labels is not None and held_out is not None and held_out.labels is not None:
        check_classes(splits.train, held_out)
    return Data(subset(splits.train, config.limit, config.seed), held_out, splits.notes)


def open_images(config: Config, source: str) -> Splits:
    """A source as the encoder of a config needs it: with its channels, and its classes alone."""
    return open_source(source, channels=config.channels, classes=config.classes)


def held_out_images(splits: Splits) -> Images:
    """What a source named by --val stands for: its test split, or all of it."""
    return splits.train if splits.test is None else splits.test


def build_plan(config: Config) -> ViewPlan:
    """The views of a resolved config."""
    return plan(
        config.views,
        large=config.large or 0,
        small=config.small,
        n_simclr=config.n_simclr,
        look=build_look(config),
        crop_scale=config.crop_scale,
    )


def build_look(config: Config) -> Look:
    """The colour operations and normalisation of a resolved config."""
    look = LOOKS[config.look or "cifar"]
    return look.of_channels(config.mean or look.mean, config.std or look.std)


def build_encoder(config: Config) -> nn.Module:
    """The encoder of a resolved config, with the weights that its seed gives."""
    torch.manual_seed(config.seed)
    return create_encoder(
        config.encoder, size=config.large or 0, width=config.width, channels=config.channels
    )


def build_method(config: Config, prepare: Callable[[nn.Module], None] = lambda encoder: None) -> Method:
    """The method of a resolved config on its device; the encoder has seen every view size once.

    `prepare` may give the encoder other weights, before anything copies it.
    """
    view_plan = build_plan(config)
    encoder = build_encoder(config)
    prepare(encoder)
    sizes = [size for size, _ in view_plan.groups]
    features = probe(encoder, sizes, channels=config.channels)
    shrinks = config.device == "cpu" and config.precision == "bf16"
    if shrinks and shrinks_to_a_pixel(encoder, sizes, channels=config.channels):
        raise ValueError(
            f"views of {min(sizes)} px shrink to a single pixel inside the encoder, where gradients of bf16 "
            "convolutions can be wrong on a CPU: take larger views or --precision fp32"
        )
    # Without a seed of their own the heads would depend on how the encoder draws its weights.
    torch.manual_seed(config.seed + 1)
    entry = METHODS[config.method]
    kind = entry.load()
    method: Method = kind(
        encoder,
        **kind.heads(features, config.projector_dim, config.projector_layers),
        **dict(_argument(config, option) for option in entry.options),
        pairs=None if config.pairing == "full" else GRAPHS[config.pairing](config.views),
        pair_reduction=config.pair_reduction,
        bn_mode=tuple(v.kind for v in view_plan.views) if config.bn_mode == "per_kind" else config.bn_mode,
    )
    if config.checkpoint_activations:
        recompute_blocks(method.encoder)
    return method.to(device=config.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _argument(config: Config, option: str) -> tuple[str, Any]:
    """What an option is called by the methods that read it, and its value for them."""
    if option == "loss":
        return "positive_in_denominator", config.loss == "vanilla"
    if option == "ema_per_pair":
        return "ema_pairs", pairs_per_image(config) if config.ema_per_pair else 1
    return option, getattr(config, option)


def pairs_per_image(config: Config) -> int:
    """How many pairs of its graph teach for every image: all, or those with a large view where no other is a target."""
    graph = GRAPHS[config.pairing](config.views)
    if config.target_views == "large_only":
        predicted = torch.zeros(config.views, dtype=torch.bool)
        predicted[list(build_plan(config).groups[0][1])] = True
        graph &= predicted[:, None] | predicted
    return count(graph)


def build_stream(config: Config, images: Images, report: Callable[[Unreadable], None]) -> Stream:
    """The batches of a resolved config; `report` is told of each image that cannot be read."""
    if config.kernel == "compiled" and config.device == "cpu" and (reason := why_not_compiled()):
        raise ValueError(f"--kernel compiled: {reason}")
    return Stream(
        images,
        build_plan(config),
        batch_size=config.batch_size,
        seed=config.seed,
        workers=config.workers or 0,
        device=torch.device(config.device or "cpu"),
        rank=distributed.rank(),
        world=distributed.world(),
        agree=distributed.anywhere,
        report=report,
        max_unreadable=config.max_unreadable,
        scaled=config.scaled,
        kernel=config.kernel,
    )


def build_preprocess(config: Config) -> Preprocess:
    view_plan = build_plan(config)
    return Preprocess(view_plan.large, view_plan.mean, view_plan.std)
