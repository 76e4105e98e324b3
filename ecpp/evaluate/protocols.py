"""The protocols that need nothing but frozen features, by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from ecpp.evaluate.knn import Knn, choose_knn, knn_score
from ecpp.evaluate.linear import LinearProtocol, Probes, fit_linear
from ecpp.evaluate.score import Score, mean_score, score
from ecpp.evaluate.splits import share
from ecpp.evaluate.sweep import Choice, choose_linear

SPLITS = (0, 1, 2)  # the seeds of the splits of few labels: the same for every encoder
FOLDS = 5  # few labels are all held out once


class Sides(NamedTuple):
    """Frozen features with labels: those to learn from, and those to count on."""

    train: Tensor
    labels: Tensor
    test: Tensor
    truth: Tensor
    classes: int


class Outcome(NamedTuple):
    """What a protocol found, of its last epoch; `best` is the epoch that the test images themselves would choose."""

    score: Score
    details: str
    labels: int
    seeds: tuple[int, ...]
    epochs: int | None = None
    best: tuple[int, float] | None = None  # (epoch, top-1)
    extra: dict[str, Any] = {}  # noqa: RUF012  # what was chosen, or each part of a mean; never changed


class Best:
    """The best epoch so far by top-1."""

    def __init__(self) -> None:
        self.found: tuple[int, float] | None = None

    def add(self, epoch: int, top1: float) -> None:
        if self.found is None or top1 > self.found[1]:
            self.found = (epoch, top1)


def linear(sides: Sides, protocol: LinearProtocol, *, seed: int, bf16: bool) -> Outcome:
    """The paper's probe."""
    best = Best()

    def look(epoch: int, probes: Probes) -> None:
        best.add(epoch, float(probes.accuracies(sides.test, sides.truth)))

    probes = fit_linear(
        sides.train, sides.labels, classes=sides.classes, protocol=protocol, seed=seed, after_epoch=look
    )
    found = score(probes.logits(sides.test), sides.truth)
    return Outcome(found, protocol.describe(), len(sides.train), (seed,), protocol.epochs, best.found)


def linear_sweep(sides: Sides, protocol: LinearProtocol, *, seed: int, bf16: bool) -> Outcome:
    """The probe at the setting that is best for a tenth of the training set; it then learns from all of it."""
    # 30 products in fp32 cost more than twice those in bf16: there the choice is made in half the epochs.
    trial = protocol if bf16 else replace(protocol, epochs=-(-protocol.epochs // 2))
    choice = choose_linear(
        sides.train, sides.labels, classes=sides.classes, protocol=trial, seed=seed, bf16=bf16
    )
    found = linear(sides, replace(choice.protocol, epochs=protocol.epochs), seed=seed, bf16=bf16)
    details = (
        f"{found.details}; lr and weight decay are the best of {len(choice.tried)} on a tenth of the training set "
        f"after {trial.epochs} epochs ({choice.accuracy:.1%} there), then trained anew on all of it"
    )
    return found._replace(details=details, extra=_chosen(choice))


def _chosen(choice: Choice) -> dict[str, Any]:
    return {
        "chosen": {"lr": choice.protocol.lr, "weight_decay": choice.protocol.weight_decay},
        "held_out_top1": choice.accuracy,
        "tried": [{"lr": lr, "weight_decay": wd, "held_out_top1": top1} for lr, wd, top1 in choice.tried],
    }


def knn(sides: Sides, protocol: LinearProtocol, *, seed: int, bf16: bool) -> Outcome:
    """The headline classifier, of fixed constants."""
    fixed = Knn()
    found = knn_score(sides.train, sides.labels, sides.test, sides.truth, fixed, classes=sides.classes)
    return Outcome(found, fixed.describe(), len(sides.train), ())


def knn_grid(sides: Sides, protocol: LinearProtocol, *, seed: int, bf16: bool) -> Outcome:
    """The constants that are best where training features ask each other."""
    chosen, tried = choose_knn(sides.train, sides.labels, seed=seed)
    found = knn_score(sides.train, sides.labels, sides.test, sides.truth, chosen, classes=sides.classes)
    extra = {
        "chosen": chosen._asdict(),
        "held_out_top1": tried[chosen],
        "tried": [{**knn._asdict(), "held_out_top1": top1} for knn, top1 in tried.items()],
    }
    details = f"{chosen.describe()}; the best of {len(tried)} settings where training images ask each other"
    return Outcome(found, details, len(sides.train), (seed,), extra=extra)


def semi(part: float) -> Callable[..., Outcome]:
    """The linear probe on a part of the labels: the mean over fixed splits."""

    def few(sides: Sides, protocol: LinearProtocol, *, seed: int, bf16: bool) -> Outcome:
        scores, settings, labels = [], [], 0
        for split in SPLITS:
            rows = share(sides.labels.cpu(), part, split)
            labels = len(rows)
            choice = choose_linear(
                sides.train,
                sides.labels,
                classes=sides.classes,
                protocol=protocol,
                rows=rows,
                parts=FOLDS,
                used=FOLDS,
                seed=seed,
                bf16=bf16,
            )
            probes = fit_linear(
                sides.train,
                sides.labels,
                classes=sides.classes,
                protocol=choice.protocol,
                rows=rows,
                seed=seed,
            )
            scores.append(score(probes.logits(sides.test), sides.truth))
            settings.append({"lr": choice.protocol.lr, "weight_decay": choice.protocol.weight_decay})
        details = (
            f"linear layer by SGD, {protocol.epochs} epochs, batch {protocol.batch_size}, on frozen un-augmented "
            f"features of {part:.0%} of the labels of every class; lr and weight decay chosen by {FOLDS}-fold "
            f"cross-validation within them; mean of {len(SPLITS)} fixed splits; last epoch"
        )
        extra = {"chosen": settings, "top1_of_splits": [s.top1 for s in scores]}
        return Outcome(mean_score(scores), details, labels, SPLITS, protocol.epochs, extra=extra)

    return few


FROZEN: dict[str, Callable[..., Outcome]] = {
    "linear": linear,
    "linear-sweep": linear_sweep,
    "knn": knn,
    "knn-grid": knn_grid,
    "semi-1": semi(0.01),
    "semi-10": semi(0.10),
}
