"""The contrastive losses of the paper over a pair graph: Eq. 1 (l) and Eq. 4 (l'), summed as in Eq. 2 and 3."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.objective import pairs as graphs

Reduction = Literal["mean", "mean_n", "sum"]
PairReduction = Literal["sum", "mean"]


def contrastive(
    z: Tensor,
    pairs: Tensor | None = None,
    *,
    tau: float = 0.2,
    positive_in_denominator: bool = False,
    reduction: Reduction = "mean",
    pair_reduction: PairReduction = "sum",
) -> Tensor:
    """Contrastive loss of K views: `z` is (K, N, D), the embedding of view k of image n in `z[k, n]`.

    `positive_in_denominator=False` is l' (Eq. 4), `True` is l (Eq. 1). The negatives of a pair are the
    other images in its own two views, so that every pair term equals the two-view loss.
    `reduction` says how the 2N anchors of a pair are joined: "mean" (over 2N), "mean_n" (their sum
    over N) or "sum" (Eq. 2 as printed); `pair_reduction` how the pairs are: "sum" (Eq. 3) or "mean".
    """
    k, n = _check(z, tau)
    mask = graphs.resolve(pairs, k, z.device)
    with torch.autocast(z.device.type, enabled=False):
        z = F.normalize(z if z.dtype == torch.float64 else z.float(), dim=-1)
        flat = z.flatten(0, 1)  # (K·N, D)
        s = (flat @ flat.T / tau).view(k, n, k, n)
        same_image = torch.eye(n, dtype=torch.bool, device=z.device)[
            :, None, :
        ]  # (N, 1, N) over (i), n, j, m
        positive = s.diagonal(dim1=1, dim2=3).transpose(1, 2)  # (K, N, K): view i, image n, view j
        negatives = s.masked_fill(same_image, -math.inf).logsumexp(dim=3)  # (K, N, K): log sum over m≠n
        own = negatives.diagonal(dim1=0, dim2=2).T[:, :, None]  # (K, N, 1): inside the anchor's own view
        denominator = torch.logaddexp(own, negatives)
        if positive_in_denominator:
            denominator = torch.logaddexp(denominator, positive)
        terms = (denominator - positive).sum(dim=1)  # (K, K): anchors in view i, positives in view j
        total = torch.where(mask, terms, 0).sum()
        return _reduce(total, n, mask, reduction, pair_reduction)


def _check(z: Tensor, tau: float) -> tuple[int, int]:
    if z.ndim != 3:
        raise ValueError(f"z must be (K views, N images, D), but has shape {tuple(z.shape)}")
    k, n, _ = z.shape
    if k < 2:
        raise ValueError(f"z holds K={k} view: there is no pair to learn from, so give at least 2 views")
    if n < 2:
        raise ValueError(f"a batch of N={n} has no negatives: a contrastive loss needs at least 2 images")
    if not z.is_floating_point():
        raise ValueError(f"z must be of a floating type, but is {z.dtype}")
    if not tau > 0:
        raise ValueError(f"tau must be above 0, but is {tau}")
    return k, n


def _reduce(total: Tensor, n: int, mask: Tensor, reduction: str, pair_reduction: str) -> Tensor:
    """The sum over all anchors of all ordered pairs, divided as asked."""
    anchors = {"mean": 2 * n, "mean_n": n, "sum": 1}
    if reduction not in anchors:
        raise ValueError(f"reduction must be one of {', '.join(anchors)}, but is {reduction!r}")
    if pair_reduction not in ("sum", "mean"):
        raise ValueError(f"pair_reduction must be sum or mean, but is {pair_reduction!r}")
    total = total / anchors[reduction]
    return total if pair_reduction == "sum" else total / (mask.sum() / 2)
