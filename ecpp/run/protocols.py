"""One protocol, one record: a run's encoder and a random one, asked alike."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from ecpp.evaluate import FROZEN, FinetuneProtocol, LinearProtocol, Outcome, finetune, linear_aug
from ecpp.evaluate.protocols import SPLITS
from ecpp.evaluate.splits import share
from ecpp.model import probe
from ecpp.run.bench import Asked, Bench

FLOOR = "the same encoder untrained, BatchNorm statistics calibrated, same probe"
SCRATCH = "the same encoder untrained, trained in the same way"
FEW = {"semi-1-finetune": 0.01, "semi-10-finetune": 0.10}
TRAINED = ("linear-aug", "finetune", "supervised", *FEW)
PROTOCOLS = (*FROZEN, *TRAINED)
LEAST_STEPS = 1000  # of fine-tuning on few labels


@dataclass(frozen=True)
class Judge:
    """An encoder and a random one under the same protocols."""

    bench: Bench
    encoder: nn.Module
    probe: LinearProtocol
    tuning: FinetuneProtocol
    epochs: int | None
    recalibrate_bn: bool
    say: Callable[[str], None]

    @cached_property
    def trained(self) -> nn.Module:
        return self.bench.calibrate(self.encoder) if self.recalibrate_bn else self.bench.place(self.encoder)

    @cached_property
    def untrained(self) -> nn.Module:
        return self.bench.calibrate(self.bench.untrained())

    @cached_property
    def asked(self) -> Asked:
        return self.bench.ask(self.trained)

    @cached_property
    def asked_untrained(self) -> Asked:
        return self.bench.ask(self.untrained)

    @cached_property
    def supervised(self) -> tuple[Outcome, float]:
        """From scratch: the floor of `finetune`, and a row of its own."""
        return self._tuned(self.bench.untrained(), None)

    def record(self, name: str, title: str) -> dict[str, Any]:
        """One entry of evaluation.json."""
        before = 0.0  # seconds that went into features
        floor: float | None = None
        floor_is: str | None = FLOOR
        if name in FROZEN or name == "linear-aug":
            before = self.asked.seconds
            found, seconds = self._probed(name, self.trained, self.asked)
            floor = self._probed(name, self.untrained, self.asked_untrained)[0].score.top1
        elif name == "supervised":
            (found, seconds), floor_is = self.supervised, None
        else:
            part = FEW.get(name)
            found, seconds = self._tuned(self.trained, part)
            scratch = self.supervised if part is None else self._tuned(self.bench.untrained(), part)
            floor, floor_is = scratch[0].score.top1, SCRATCH
        classes = self.bench.train.classes
        return {
            "protocol": title,
            "top1": found.score.top1,
            "top5": found.score.top5,
            "floor": floor,
            "floor_is": floor_is,
            "last": None if found.epochs is None else {"epoch": found.epochs, "top1": found.score.top1},
            "best_by_test": None
            if found.best is None
            else dict(zip(("epoch", "top1"), found.best, strict=True)),
            "source": self.bench.source,
            "split": self.bench.val or "its own train and test splits",
            "labels": found.labels,
            "tested": found.score.tested,
            "seeds": list(found.seeds),
            "details": found.details + ("; BatchNorm recalibrated" if self.recalibrate_bn else ""),
            "seconds": before + seconds,
            "solver_seconds": seconds,
            "per_class": dict(zip(classes, found.score.per_class, strict=True)),
            **found.extra,
        }

    def _probed(self, name: str, net: nn.Module, asked: Asked) -> tuple[Outcome, float]:
        bench, started = self.bench, time.perf_counter()
        seed = bench.config.seed
        if name in FROZEN:
            # Half precision ranks the settings of a sweep; no number is counted in it.
            found = FROZEN[name](asked.sides, self.probe, seed=seed, bf16=bench.native_bf16)
        else:
            protocol = replace(self.probe, epochs=self.epochs or self.probe.epochs)
            found = linear_aug(
                net,
                bench.augmented(batch_size=protocol.batch_size),
                bench.train.labels,  # type: ignore[arg-type]
                asked.sides.test,
                asked.sides.truth,
                classes=bench.classes,
                protocol=protocol,
                seed=seed,
                bf16=bench.bf16,
            )
        return found, time.perf_counter() - started

    def _tuned(self, net: nn.Module, part: float | None) -> tuple[Outcome, float]:
        bench, started = self.bench, time.perf_counter()
        labels: Tensor = bench.train.labels  # type: ignore[assignment]
        rows, tuning = None, self.tuning
        if part is not None:
            rows = share(labels, part, SPLITS[0])
            labels = labels[rows]
            tuning = tuning.at_least(LEAST_STEPS, len(rows))
        found = finetune(
            net,
            bench.augmented(batch_size=tuning.batch_size, rows=rows),
            labels,
            bench.count,
            width=probe(net, [bench.preprocess.size], channels=bench.config.channels),
            classes=bench.classes,
            protocol=tuning,
            bf16=bench.bf16,
            say=self.say,
        )
        if part is not None:
            found = found._replace(
                details=f"{part:.0%} of the labels of every class, split {SPLITS[0]}; {found.details}"
            )
        return found, time.perf_counter() - started
