"""Losses without negatives that forbid collapse by statistics of the batch, over a pair graph: Barlow Twins, VICReg."""

from typing import Literal

import torch
from torch import Tensor

from ecpp.objective import pairs as graphs
from ecpp.objective.given import check_embeddings

PairReduction = Literal["sum", "mean"]


def barlow(
    z: Tensor,
    pairs: Tensor | None = None,
    *,
    redundancy: float = 0.005,
    pair_reduction: PairReduction = "sum",
) -> Tensor:
    """Barlow Twins: the D×D cross-correlation of every pair of views is drawn to the identity; `z` is (K, N, D).

    Each pair adds the squared distance of the diagonal from 1, and `redundancy` times the squares off it.
    """
    z, mask = check(z, pairs, pair_reduction)
    n = z.shape[1]
    with torch.autocast(z.device.type, enabled=False):
        z = (z - z.mean(dim=1, keepdim=True)) / (z.var(dim=1, correction=0, keepdim=True) + 1e-5).sqrt()
        agree = torch.einsum("ind,jnd->ijd", z, z) / n  # (K, K, D): the diagonals
        whole = _cross_squares(z) / n**2  # (K, K): the sum of all squares of each cross-correlation
        on = (1 - agree).square().sum(dim=2)
        terms = on + redundancy * (whole - agree.square().sum(dim=2))
        return reduce(torch.where(mask, terms, 0).sum() / 2, mask, pair_reduction)


def _cross_squares(z: Tensor) -> Tensor:
    """|z[i]ᵀ z[j]|² for all views i, j, (K, K).

    It is also the inner product of the N×N Gram matrices z zᵀ of the two views, which are only K.
    """
    k, n, d = z.shape
    if n <= d:
        grams = (z @ z.mT).flatten(1)  # (K, N·N)
        return grams @ grams.T
    flat = z.transpose(1, 2).flatten(0, 1)  # (K·D, N)
    products: Tensor = (flat @ flat.T).view(k, d, k, d)
    return products.square().sum(dim=(1, 3))


def vicreg(
    z: Tensor,
    pairs: Tensor | None = None,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
    pair_reduction: PairReduction = "sum",
) -> Tensor:
    """VICReg: every pair draws together, every view keeps its spread and decorrelates; `z` is (K, N, D).

    What belongs to a view is computed once and counts for each of its pairs, so that the whole is the
    sum of the two-view losses.
    """
    z, mask = check(z, pairs, pair_reduction)
    n, d = z.shape[1:]
    with torch.autocast(z.device.type, enabled=False):
        apart = distances(z, None if pairs is None else mask) / (n * d)
        centred = z - z.mean(dim=1, keepdim=True)
        var = centred.square().sum(dim=1) / (n - 1)  # (K, D)
        narrow = (1 - (var + 1e-4).sqrt()).relu().mean(dim=1)
        square = centred @ centred.mT if n <= d else centred.mT @ centred  # the same sum of squares
        alike = (square.square().sum(dim=(1, 2)) / (n - 1) ** 2 - var.square().sum(dim=1)) / d
        views = variance * narrow / 2 + covariance * alike  # (K)
        return reduce(invariance * apart + (mask.sum(dim=1) * views).sum(), mask, pair_reduction)


def distances(z: Tensor, mask: Tensor | None) -> Tensor:
    """The sum over the pairs of |z[i] - z[j]|² of all images; for all pairs K·Σ|z[i] - mean|², which is O(K)."""
    z = z - z.mean(dim=0, keepdim=True)  # over views: no difference changes, and nothing large cancels
    if mask is None:
        return len(z) * z.square().sum()
    flat = z.flatten(1)  # (K, N·D)
    own = (mask.sum(dim=1) * flat.square().sum(dim=1)).sum()
    return own - torch.where(mask, flat @ flat.T, 0).sum()


def check(z: Tensor, pairs: Tensor | None, pair_reduction: str) -> tuple[Tensor, Tensor]:
    """`z` in fp32 or fp64 and the graph, or what is wrong with them."""
    check_embeddings(z, "z")
    k, n, _ = z.shape
    if n < 2:
        raise ValueError(f"a batch of N={n} has no statistics: this loss needs at least 2 images")
    if pair_reduction not in ("sum", "mean"):
        raise ValueError(f"pair_reduction must be sum or mean, but is {pair_reduction!r}")
    return z if z.dtype == torch.float64 else z.float(), graphs.resolve(pairs, k, z.device)


def reduce(total: Tensor, mask: Tensor, pair_reduction: str) -> Tensor:
    return total if pair_reduction == "sum" else total / (mask.sum() / 2)
