"""The BYOL regression over a pair graph (Sec. "non-contrastive": every view predicts every paired view's target)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.objective import pairs as graphs


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
    if p.ndim != 3 or p.shape != t.shape:
        raise ValueError(
            f"p and t must both be (K views, N images, D), but are {tuple(p.shape)} and {tuple(t.shape)}"
        )
    if reduction not in ("mean", "sum") or pair_reduction not in ("sum", "mean"):
        raise ValueError(
            f"reduction and pair_reduction must be mean or sum, but are {reduction!r} and {pair_reduction!r}"
        )
    k, n, _ = p.shape
    if k < 2 or n < 1:
        raise ValueError(f"p holds K={k} views of N={n} images: there is no pair to learn from")
    mask = graphs.resolve(pairs, k, p.device)
    wide = torch.float64 if torch.float64 in (p.dtype, t.dtype) else torch.float32
    with torch.autocast(p.device.type, enabled=False):
        p = F.normalize(p.to(wide), dim=-1)
        t = F.normalize(t.detach().to(wide), dim=-1)
        if pairs is None:  # the targets of view i are all but its own, so their sum serves: O(K), not O(K²)
            paired = t.sum(dim=0, keepdim=True) - t  # (K, N, D)
        else:
            paired = torch.einsum("ij,jnd->ind", mask.to(wide), t)
        total = 2 * n * mask.sum() - 2 * (p * paired).sum()
        total = total / n if reduction == "mean" else total
        return total if pair_reduction == "sum" else total / (mask.sum() / 2)
