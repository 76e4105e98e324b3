"""The weighted nearest-neighbour classifier."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.evaluate.score import Score, score
from ecpp.evaluate.splits import share

QUERIES = 1024  # that are compared with the bank at a time
GRID_K = (1, 5, 10, 20, 50, 100, 200)
GRID_TEMPERATURE = (0.02, 0.05, 0.07, 0.1, 0.2, 0.5)
ASKED = 10_000  # training features, at most, on which the grid is judged


class Knn(NamedTuple):
    """The constants of the classifier; the defaults are those usual in the field."""

    k: int = 20
    temperature: float = 0.07

    def describe(self) -> str:
        return (
            f"{self.k} nearest by cosine, votes weighted by exp(similarity / {self.temperature}), "
            "frozen un-augmented features"
        )


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Share of test features whose k most similar training features vote for the right class."""
    return knn_score(train, train_labels, test, test_labels, Knn(k, temperature)).top1


@torch.no_grad()
def knn_score(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    knn: Knn | None = None,
    *,
    classes: int | None = None,
) -> Score:
    """Let the training features vote for the class of each test feature.

    Similarity is the cosine; a vote weighs exp(similarity / temperature). `k` is cut to the training set.
    """
    knn = knn or Knn()
    if not len(train) or not len(test):
        raise ValueError(
            f"kNN needs features on both sides, but has {len(train)} to vote and {len(test)} to judge"
        )
    classes = classes or int(torch.cat([train_labels, test_labels]).max()) + 1
    parts = _neighbours(F.normalize(train, dim=1), F.normalize(test, dim=1), knn.k)
    votes = [_votes(s, train_labels[i], classes, knn.temperature) for s, i in parts]
    return score(torch.cat(votes), test_labels)


def _neighbours(
    bank: Tensor, queries: Tensor, k: int, own: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Similarities and places of the k nearest of each query, (Q, k); `own` are the queries' own places in the bank."""
    for start in range(0, len(queries), QUERIES):
        similarity = queries[start : start + QUERIES] @ bank.T
        if own is not None:  # nobody votes for himself
            similarity.scatter_(1, own[start : start + QUERIES, None], -torch.inf)
        yield tuple(similarity.topk(min(k, len(bank)), dim=1))  # type: ignore[misc]


def _votes(similarity: Tensor, labels: Tensor, classes: int, temperature: float) -> Tensor:
    """(Q, k) neighbours, nearest first, to (Q, classes) votes; -inf for a class without any."""
    # A constant factor per query changes no order, and keeps the largest weight at 1 however small the temperature.
    weight = ((similarity - similarity[:, :1]) / temperature).exp()
    votes = weight.new_zeros(len(weight), classes).scatter_add_(1, labels, weight)
    return votes.masked_fill(votes == 0, -torch.inf)


@torch.no_grad()
def choose_knn(train: Tensor, labels: Tensor, *, seed: int = 0) -> tuple[Knn, dict[Knn, float]]:
    """The best k and temperature for the training set itself, and what all reached.

    Every training feature asks all others; of more than 10,000 a share of every class does.
    """
    asked = share(labels.cpu(), min(1.0, ASKED / len(labels)), seed).to(train.device)
    bank = F.normalize(train, dim=1)
    ks = sorted({min(k, len(bank) - 1) for k in GRID_K} - {0})
    if not ks:
        raise ValueError("the grid of kNN asks training images of each other, so it needs at least two")
    right = {Knn(k, t): 0 for k in ks for t in GRID_TEMPERATURE}
    classes = int(labels.max()) + 1
    parts = zip(_neighbours(bank, bank[asked], ks[-1], asked), torch.split(asked, QUERIES), strict=True)
    for (similarity, index), queries in parts:
        for knn in right:
            votes = _votes(similarity[:, : knn.k], labels[index[:, : knn.k]], classes, knn.temperature)
            right[knn] += int((votes.argmax(dim=1) == labels[queries]).sum())
    found = {knn: n / len(asked) for knn, n in right.items()}
    return max(found, key=lambda knn: found[knn]), found
