"""A grid of learning rates and weight decays, trained at once and chosen on a part of the training set."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ecpp.evaluate.linear import LinearProtocol, fit_linear
from ecpp.evaluate.splits import folds

FACTORS = tuple(10 ** (i / 2) for i in range(-5, 5))  # of the protocol's own learning rate
DECAYS = (0.0, 1e-5, 1e-3)


class Choice(NamedTuple):
    """The best setting, its accuracy on what was held out of the training set, and what every setting reached."""

    protocol: LinearProtocol
    accuracy: float
    tried: tuple[tuple[float, float, float], ...]  # (learning rate, weight decay, accuracy)


def grid(protocol: LinearProtocol) -> list[tuple[float, float]]:
    """30 settings around a protocol's own."""
    return [(protocol.lr * factor, decay) for factor in FACTORS for decay in DECAYS]


def choose_linear(
    train: Tensor,
    labels: Tensor,
    *,
    classes: int,
    protocol: LinearProtocol,
    rows: Tensor | None = None,
    parts: int = 10,
    used: int = 1,
    seed: int = 0,
    bf16: bool = False,
) -> Choice:
    """Train the grid on all but one of `parts` of the training set and count on that one, for the first `used` parts.

    No test image comes near: there is no argument for any.
    """
    settings = grid(protocol)
    rows = torch.arange(len(train)) if rows is None else rows
    part = folds(labels[rows].cpu(), parts, seed)
    right, judged = torch.zeros(len(settings), dtype=torch.float64), 0
    for held_out in range(used):
        inside, outside = rows[part != held_out], rows[part == held_out].to(train.device)
        if len(inside) and len(outside):
            probes = fit_linear(
                train,
                labels,
                classes=classes,
                protocol=protocol,
                settings=settings,
                rows=inside,
                seed=seed,
                bf16=bf16,
            )
            right += probes.accuracies(train[outside], labels[outside]).cpu() * len(outside)
            judged += len(outside)
    if not judged:
        raise ValueError(
            f"{len(rows)} labelled images are too few to hold some out: give more, or use `linear`"
        )
    found = (right / judged).tolist()
    best = max(range(len(settings)), key=found.__getitem__)
    lr, decay = settings[best]
    tried = tuple((*setting, accuracy) for setting, accuracy in zip(settings, found, strict=True))
    return Choice(replace(protocol, lr=lr, weight_decay=decay), found[best], tried)
