"""The numbers of a run: kNN and linear accuracy beside those of a random encoder."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ecpp.config import Config
from ecpp.data import Images, check_classes, subset
from ecpp.evaluate import LinearProtocol, calibrate, features, knn_accuracy, linear_probe
from ecpp.evaluate.linear import IMAGENET_PROTOCOL
from ecpp.run import build
from ecpp.run.folder import RunFolder, write_json
from ecpp.run.resolve import precision_on, usable_device
from ecpp.run.weights import load

FLOOR = "the same encoder untrained, BatchNorm statistics calibrated, same probe"
KNN = "20 nearest by cosine, votes weighted by exp(similarity / 0.07), frozen un-augmented features"


def evaluate_run(
    run: Path,
    source: str | None = None,
    *,
    val: str | None = None,
    limit: int | None = None,
    workers: int | None = None,
    momentum: float | None = None,
) -> dict[str, Any]:
    """Judge a run's encoder on `source` (default: its own) and write RUN/evaluation.json.

    The probe learns from all training images with their labels (at most `limit`), whatever number of
    images the run itself used, and is counted on all held-out ones. `momentum` is the linear probe's.
    """
    if workers is not None and workers < 0:
        raise ValueError(f"--workers must be at least 0, but is {workers}")
    folder = RunFolder(run)
    config = folder.resolved()
    torch.set_num_threads(config.threads or 1)
    train, test, source = _labelled(config, source, val, limit)
    encoder = load(run)
    preprocess = build.build_preprocess(config)
    device = usable_device(None)
    bf16 = config.precision == "bf16" and precision_on(device) == "bf16"
    workers = (config.workers or 0) if workers is None else workers
    protocol = _protocol(config, momentum)

    used: list[int] = []  # how many images of each side could be read

    def judge(net: nn.Module) -> dict[str, tuple[float, float]]:
        started = time.perf_counter()
        net = net.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        sides = [features(net, images, preprocess, workers=workers, bf16=bf16) for images in (train, test)]
        extraction = time.perf_counter() - started
        labels = [images.labels[f.index] for images, f in zip((train, test), sides, strict=True)]  # type: ignore[index]
        used[:] = [len(y) for y in labels]
        results = _protocols(protocol, config.seed, [f.values for f in sides], labels, len(train.classes))
        return {name: (top1, extraction + seconds) for name, (top1, seconds) in results.items()}

    trained = judge(encoder)
    untrained = build.build_encoder(config).to(device)
    calibrate(untrained, train, preprocess, seed=config.seed, workers=workers, bf16=bf16)
    floor = judge(untrained)
    details = {"linear": protocol.describe(), "knn": KNN}
    results = [
        {
            "protocol": name,
            "top1": top1,
            "floor": floor[name][0],
            "floor_is": FLOOR,
            "labels": used[0],
            "tested": used[1],
            "details": details[name],
            "seconds": seconds,
        }
        for name, (top1, seconds) in trained.items()
    ]
    evaluation = {"source": source, "classes": len(train.classes), "results": results}
    write_json(folder.evaluation, evaluation)
    return evaluation


def _labelled(
    config: Config, source: str | None, val: str | None, limit: int | None
) -> tuple[Images, Images, str]:
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
    return subset(splits.train, limit, config.seed), test, name


def _protocol(config: Config, momentum: float | None) -> LinearProtocol:
    """The paper's probe for the look of the run; its momentum of 0.995 for ImageNet may be a misprint of 0.9."""
    protocol = LinearProtocol() if config.look == "cifar" else IMAGENET_PROTOCOL
    if momentum is None:
        return protocol
    if not 0 <= momentum < 1:
        raise ValueError(f"--momentum must be at least 0 and below 1, but is {momentum}")
    return replace(protocol, momentum=momentum)


def _protocols(
    protocol: LinearProtocol, seed: int, sides: list[Tensor], labels: list[Tensor], classes: int
) -> dict[str, tuple[float, float]]:
    """(top-1, seconds) of each protocol."""

    def timed(f: Callable[[], float]) -> tuple[float, float]:
        started = time.perf_counter()
        return f(), time.perf_counter() - started

    (train, test), (y, y_test) = sides, labels
    return {
        "linear": timed(
            lambda: linear_probe(train, y, test, y_test, classes=classes, protocol=protocol, seed=seed)
        ),
        "knn": timed(lambda: knn_accuracy(train, y, test, y_test)),
    }
