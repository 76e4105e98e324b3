"""What a protocol counts: top-1, top-5 and each class by itself."""

from typing import NamedTuple

import torch
from torch import Tensor


class Score(NamedTuple):
    """Shares of right answers; `top5` where there are more than five classes, None for a class without images."""

    top1: float
    top5: float | None
    per_class: tuple[float | None, ...]
    tested: int


def score(votes: Tensor, truth: Tensor) -> Score:
    """Count (n, classes) votes, the highest first; a class whose vote is not finite is not among the answers."""
    classes, truth = votes.shape[1], truth.to(votes.device)
    value, answer = votes.topk(min(5, classes), dim=1)
    right = (answer == truth[:, None]) & value.isfinite()
    seen = torch.bincount(truth, minlength=classes).tolist()
    found = torch.bincount(truth[right[:, 0]], minlength=classes).tolist()
    return Score(
        top1=int(right[:, 0].sum()) / len(truth),
        top5=int(right.sum()) / len(truth) if classes > 5 else None,
        per_class=tuple(f / s if s else None for f, s in zip(found, seen, strict=True)),
        tested=len(truth),
    )


def mean_score(scores: list[Score]) -> Score:
    """The mean over several trainings that were counted on the same images."""

    def mean(values: tuple[float | None, ...]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) / len(known) if known else None

    return Score(
        top1=sum(s.top1 for s in scores) / len(scores),
        top5=mean(tuple(s.top5 for s in scores)),
        per_class=tuple(map(mean, zip(*(s.per_class for s in scores), strict=True))),
        tested=scores[0].tested,
    )
