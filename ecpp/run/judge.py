"""The numbers of a run, each by the name of its protocol and beside that of a random encoder."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ecpp import distributed
from ecpp.config import Config
from ecpp.evaluate import FeatureCache, FinetuneProtocol, LinearProtocol
from ecpp.evaluate.cache import hash_weights
from ecpp.evaluate.linear import IMAGENET_PROTOCOL
from ecpp.run.bench import Bench, open_bench
from ecpp.run.folder import Epoch, RunFolder, write_json
from ecpp.run.protocols import PROTOCOLS, TRAINED, Judge
from ecpp.run.resolve import usable_device
from ecpp.run.weights import load

DEFAULT = ("linear", "knn")
RECALIBRATED = "+bn"  # behind the name of a protocol


def evaluate_run(
    run: Path,
    source: str | None = None,
    *,
    protocols: Sequence[str] = DEFAULT,
    transfer: Sequence[str] = (),
    val: str | None = None,
    limit: int | None = None,
    workers: int | None = None,
    momentum: float | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    recalibrate_bn: bool = False,
    epoch: Epoch = None,
    cache: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Judge a run's encoder on `source` (default: its own) and write RUN/evaluation.json.

    That of an `epoch` which is named goes into a file of its own, RUN/evaluation-best.json for "best".

    Learns from all training images with their labels (at most `limit`), whatever number of images the run
    itself used, and counts on all held-out ones. `momentum` is the linear probe's; `epochs` and `lr` are those of
    the protocols that see augmented images. Protocols that were asked for before, of the same weights and data, stay.
    Under torchrun the ranks share the work on frozen features, and the first one writes.
    """
    device = usable_device(None)
    with distributed.start(device):
        _check(protocols, workers, epochs, lr)
        _check_used(protocols, transfer, momentum=momentum, epochs=epochs, lr=lr)
        say = say if distributed.is_main() else lambda text: None
        folder = RunFolder(run)
        config = folder.resolved()
        encoder = load(run, epoch=epoch)
        torch.set_num_threads(config.threads or 1)

        def bench_of(name: str | None, val: str | None, config: Config) -> Bench:
            return open_bench(
                config,
                name,
                val,
                limit,
                device=device,
                workers=(config.workers or 0) if workers is None else workers,
                cache=FeatureCache(folder.features if cache else None, say=say),
            )

        bench = bench_of(source, val, config)
        tuning = FinetuneProtocol()
        judge = Judge(
            bench,
            encoder,
            linear_protocol(config, momentum),
            replace(tuning, epochs=epochs or tuning.epochs, lr=lr or tuning.lr),
            epochs,
            recalibrate_bn,
            say,
        )
        suffix = RECALIBRATED if recalibrate_bn else ""
        file = folder.evaluation(epoch)
        evaluation = _begin(file, bench, limit, hash_weights(encoder))
        if epoch is not None:
            evaluation["epoch"] = epoch
        for name in dict.fromkeys(protocols):
            _add(file, evaluation, judge.record(name, name + suffix), say)
        for other in transfer:
            there = bench_of(other, None, replace(config, classes=None))  # it has classes of its own
            record = replace(judge, bench=there).record(
                "linear-sweep", f"transfer:{Path(other).name}{suffix}"
            )
            _add(file, evaluation, record, say)
        return evaluation


def _begin(file: Path, bench: Bench, limit: int | None, weights: str) -> dict[str, Any]:
    """What an evaluation is of, and the results that are there of the same."""
    head = {
        "source": bench.source,
        "val": bench.val,
        "limit": limit,
        "classes": bench.classes,
        "weights": weights,
    }
    try:
        there = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        there = None
    same = isinstance(there, dict) and all(there.get(k, head) == v for k, v in head.items())
    return {**head, "results": list(there["results"]) if same else []}


def _add(file: Path, evaluation: dict[str, Any], record: dict[str, Any], say: Callable[[str], None]) -> None:
    """A record takes the place of the one before it; what is found so far is written."""
    results = {r["protocol"]: r for r in evaluation["results"]}
    evaluation["results"] = list({**results, record["protocol"]: record}.values())
    if distributed.is_main():
        write_json(file, evaluation)
    floor = "" if record["floor"] is None else f" (random encoder {record['floor']:.1%})"
    say(f"{record['protocol']}: {record['top1']:.1%}{floor}, {record['seconds']:.0f} s")


def _check(protocols: Sequence[str], workers: int | None, epochs: int | None, lr: float | None) -> None:
    for name in protocols:
        if name not in PROTOCOLS:
            raise ValueError(f"there is no protocol {name!r}: take some of {', '.join(PROTOCOLS)}")
        if name in TRAINED and distributed.world() > 1:
            raise ValueError(f"{name} trains in one process: start `ecpp evaluate` without torchrun for it")
    if workers is not None and workers < 0:
        raise ValueError(f"--workers must be at least 0, but is {workers}")
    if epochs is not None and epochs < 1:
        raise ValueError(f"--epochs must be at least 1, but is {epochs}")
    if lr is not None and not 0 < lr < float("inf"):
        raise ValueError(f"--lr must be a number above 0, but is {lr}")


def _check_used(protocols: Sequence[str], transfer: Sequence[str], **options: float | None) -> None:
    """An option that none of the protocols reads would do nothing."""
    tuned = [p for p in protocols if p in TRAINED]
    users = {
        "momentum": [p for p in protocols if p.startswith(("linear", "semi"))] + list(transfer),
        "epochs": tuned,
        "lr": [p for p in tuned if p != "linear-aug"],
    }
    for name, value in options.items():
        if value is not None and not users[name]:
            raise ValueError(
                f"--{name} belongs to other protocols and would do nothing for {', '.join(protocols)}: leave it out"
            )


def linear_protocol(config: Config, momentum: float | None) -> LinearProtocol:
    """The paper's probe for the look of the run; its momentum of 0.995 for ImageNet may be a misprint of 0.9."""
    protocol = LinearProtocol() if config.look == "cifar" else IMAGENET_PROTOCOL
    if momentum is None:
        return protocol
    if not 0 <= momentum < 1:
        raise ValueError(f"--momentum must be at least 0 and below 1, but is {momentum}")
    return replace(protocol, momentum=momentum)
