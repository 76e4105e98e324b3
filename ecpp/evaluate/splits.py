"""Parts of a training set, every class alike, fixed by a seed."""

import torch
from torch import Tensor


def _turns(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """For each image its place in a random order of its own class, and how many that class has."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]  # class by class, random within
    count = torch.bincount(labels)
    first = count.cumsum(0) - count
    turn = torch.empty_like(order)
    turn[order] = torch.arange(len(labels)) - first[labels[order]]
    return turn, count[labels]


def share(labels: Tensor, part: float, seed: int) -> Tensor:
    """Indices of `part` of every class, at least one image of each."""
    turn, count = _turns(labels, seed)
    wanted = (count * part).round().clamp(min=1)
    return (turn < wanted).nonzero()[:, 0]


def folds(labels: Tensor, parts: int, seed: int) -> Tensor:
    """Which of `parts` folds each image belongs to; every class is spread evenly over them."""
    turn, _ = _turns(labels, seed)
    return (turn + labels) % parts  # small classes do not all begin with the first fold
