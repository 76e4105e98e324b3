"""W-MSE over a pair graph: embeddings are whitened, view by view, and then drawn together."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.objective.regularised import PairReduction, check, distances, reduce


def wmse(
    z: Tensor,
    pairs: Tensor | None = None,
    *,
    shrinkage: float = 1e-3,
    pair_reduction: PairReduction = "sum",
) -> Tensor:
    """Each pair adds 2 - 2 cos of its whitened embeddings, mean over images; `z` is (K, N, D).

    Whitening is done once for each view; it needs more images than dimensions.
    """
    z, mask = check(z, pairs, pair_reduction)
    with torch.autocast(z.device.type, enabled=False):
        unit = F.normalize(whiten(z, shrinkage), dim=-1)
        total = distances(unit, None if pairs is None else mask) / z.shape[1]
        return reduce(total, mask, pair_reduction)


def whiten(z: Tensor, shrinkage: float = 1e-3) -> Tensor:
    """Every view of (K, N, D) with mean 0 and the identity as its covariance, by Cholesky.

    The covariance is first drawn to the identity by `shrinkage`, which keeps it invertible.
    """
    n, d = z.shape[1:]
    if n <= d:
        raise ValueError(
            f"whitening {d} dimensions needs more than {d} images, but the batch holds {n}: "
            "take a larger --batch-size or a smaller --projector-dim"
        )
    centred = z - z.mean(dim=1, keepdim=True)
    identity = torch.eye(d, dtype=z.dtype, device=z.device)
    covariance = (1 - shrinkage) * centred.mT @ centred / (n - 1) + shrinkage * identity
    # Without a check of its result, which would stop the device; it is positive definite by construction.
    lower, _ = torch.linalg.cholesky_ex(covariance)
    white: Tensor = torch.linalg.solve_triangular(lower, centred.mT, upper=False).mT
    return white
