"""Pairs with a direction: every view predicts some views' targets, for targets that see the large views alone."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.objective import pairs as graphs
from ecpp.objective.given import check_tau
from ecpp.objective.unit import doubled, precision, unit, wide


def directions(pairs: Tensor | None, k: int, places: tuple[int, ...], device: torch.device) -> Tensor:
    """(K, L), who predicts whom: view i the view `places[l]`, where the graph pairs the two."""
    mask = graphs.resolve(pairs, k, device)
    return torch.stack([mask[:, place] for place in places], dim=1)


def regression_terms(p: Tensor, t: Tensor) -> Tensor:
    """(K, L): 2 - 2 cos(p[i], t[l]), mean over images; `p` is (K, N, D), `t` (L, N, D)."""
    with torch.autocast(p.device.type, enabled=False):
        result, dtype = wide(p, t), doubled(p, t)
        p, t = unit(p.to(dtype))[0], unit(t.to(dtype))[0]
        return (2 - 2 * p.flatten(1) @ t.flatten(1).T / p.shape[1]).to(result)


def regression(
    p: Tensor, t: Tensor, pairs: Tensor | None = None, *, pair_reduction: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """As `objective.byol`, but for the gradient, which goes into `t` too."""
    return join(regression_terms(p, t), graphs.resolve(pairs, len(p), p.device), pair_reduction)


def contrast_terms(q: Tensor, keys: Tensor, *, tau: float) -> Tensor:
    """(K, L): the cross-entropy of finding keys[l, n] among keys[l, all m] by q[i, n], half of its mean (MoCo v3).

    Half, so that both directions of a pair are a mean over its 2N anchors.
    """
    check_tau(tau)
    with torch.autocast(q.device.type, enabled=False):
        result, dtype = wide(q, keys), precision(tau, len(keys) * keys.shape[1], q, keys)
        q, keys = unit(q.to(dtype))[0], unit(keys.detach().to(dtype))[0]
        s = torch.einsum("ind,lmd->ilnm", q, keys) / tau  # (K, L, N, N)
        positive = s.diagonal(dim1=2, dim2=3)
        itself = torch.eye(s.shape[2], dtype=torch.bool, device=s.device)
        negatives = s.masked_fill(itself, -math.inf).logsumexp(dim=3)
        # log(1 + negatives / positive), exact where that is tiny
        return F.softplus(negatives - positive, threshold=50).mean(dim=2).to(result) / 2


def join(terms: Tensor, towards: Tensor, pair_reduction: Literal["sum", "mean"] = "sum") -> Tensor:
    """The terms (K, L) of the directions that are taught, as one loss; "mean" takes two directions for a pair."""
    total = torch.where(towards, terms, 0).sum()
    return total if pair_reduction == "sum" else total / (towards.sum() / 2)


@torch.no_grad()
def per_pair(terms: Tensor, towards: Tensor, places: tuple[int, ...]) -> Tensor:
    """(K, K), symmetric: what the one or two directions of each pair add to the sum over pairs."""
    square = terms.new_zeros(len(terms), len(terms))
    for column, place in enumerate(places):
        square[:, place] = torch.where(towards[:, column], terms[:, column], 0)
    return square + square.T
