"""The BYOL regression over a pair graph (Sec. "non-contrastive": every view predicts every paired view's target)."""

from typing import Literal

import torch
from torch import Tensor

from ecpp.objective import pairs as graphs
from ecpp.objective.given import check_embeddings
from ecpp.objective.unit import doubled, unit, wide


def byol(
    p: Tensor,
    t: Tensor,
    pairs: Tensor | None = None,
    *,
    reduction: Literal["mean", "sum"] = "mean",
    pair_reduction: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """Each pair (i, j) adds 2 - 2 cos(p[i], t[j]) and 2 - 2 cos(p[j], t[i]) per image; no gradient goes to `t`.

    `p` are the online predictions and `t` the target projections, both (K, N, D). `reduction` joins the
    images, `pair_reduction` the pairs; with "mean" and "sum" two views give the loss of BYOL itself.
    """
    check_embeddings(p, "p")
    check_embeddings(t, "t")
    if p.shape != t.shape:
        raise ValueError(f"p and t must be of one shape, but are {tuple(p.shape)} and {tuple(t.shape)}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be mean or sum, but is {reduction!r}")
    if pair_reduction not in ("sum", "mean"):
        raise ValueError(f"pair_reduction must be sum or mean, but is {pair_reduction!r}")
    k, n, _ = p.shape
    mask = graphs.resolve(pairs, k, p.device)
    result, dtype = wide(p, t), doubled(p, t)
    with torch.autocast(p.device.type, enabled=False):
        p, _ = unit(p.to(dtype))
        t, _ = unit(t.detach().to(dtype))
        if pairs is None:  # the targets of view i are all but its own, so their sum serves: O(K), not O(K²)
            paired = t.sum(dim=0, keepdim=True) - t  # (K, N, D)
        else:
            paired = torch.einsum("ij,jnd->ind", mask.to(dtype), t)
        total = (2 * n * mask.sum() - 2 * (p * paired).sum()).to(result)
        total = total / n if reduction == "mean" else total
        return total if pair_reduction == "sum" else total / (mask.sum() / 2)
