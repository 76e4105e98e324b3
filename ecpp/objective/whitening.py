"""W-MSE over a pair graph: embeddings are whitened, view by view, and then drawn together."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.objective.regularised import PairReduction, check, distances, reduce
from ecpp.objective.unit import SHORTEST, doubled


def wmse(
    z: Tensor,
    pairs: Tensor | None = None,
    *,
    shrinkage: float = 1e-6,
    pair_reduction: PairReduction = "sum",
) -> Tensor:
    """Each pair adds 2 - 2 cos of its whitened embeddings, mean over images; `z` is (K, N, D).

    Whitening is done once for each view; it needs more images than dimensions. It is done in float64 (but on
    Apple's GPUs, which have none), since a `shrinkage` that fp32 could bear (1e-3) lets the embeddings collapse:
    with all their variance in a few directions, the others stay too short to be seen, and a few directions are
    soon agreed on.
    """
    z, mask = check(z, pairs, pair_reduction)
    with torch.autocast(z.device.type, enabled=False):
        white = F.normalize(whiten(z.to(doubled(z)), shrinkage), dim=-1)
        total = distances(white, None if pairs is None else mask) / z.shape[1]
        return reduce(total.to(z.dtype), mask, pair_reduction)


def whiten(z: Tensor, shrinkage: float = 1e-6) -> Tensor:
    """Every view of (K, N, D) with mean 0 and the identity as its covariance, by Cholesky.

    The covariance is first drawn by `shrinkage` to a sphere of the same mean variance, which keeps it
    invertible and leaves the scale of `z` without a say.
    """
    if not 0 <= shrinkage < 1:
        raise ValueError(f"shrinkage must be at least 0 and below 1, but is {shrinkage}")
    n, d = z.shape[1:]
    if n <= d:
        raise ValueError(
            f"whitening {d} dimensions needs more than {d} images, but the batch holds {n}: "
            "take a larger --batch-size or a smaller --projector-dim"
        )
    centred = z - z.mean(dim=1, keepdim=True)
    covariance = centred.mT @ centred / (n - 1)
    variance = covariance.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]  # (K, 1, 1)
    rounding = 4 * torch.finfo(z.dtype).eps * z.square().mean(dim=(1, 2), keepdim=True).sqrt()
    varies = variance > rounding.square() + SHORTEST**2
    sphere = torch.where(varies, variance, 1) * torch.eye(d, dtype=z.dtype, device=z.device)
    covariance = (1 - shrinkage) * covariance + shrinkage * sphere
    # Without a check of its result, which would stop the device: in float64 a shrinkage above 0 makes it definite.
    lower, _ = torch.linalg.cholesky_ex(covariance)
    white = torch.linalg.solve_triangular(lower, centred.mT, upper=False).mT
    return torch.where(varies, white, 0)  # of a view that does not vary nothing can be said, nor learnt
