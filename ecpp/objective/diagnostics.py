"""Is it learning, and from which pairs? Values without gradient that never stop the device."""

from collections.abc import Callable

import torch
from torch import Tensor

from ecpp.objective.unit import unit, wide


@torch.no_grad()
def similarities(z: Tensor) -> dict[str, Tensor]:
    """Of embeddings (K, N, D): their spread and their mean cosines, over all images.

    `embedding_std` is 1 when they lie evenly over all directions and 0 when they have collapsed;
    `pair_similarity` is (K, K): views i and j of the same image.
    """
    with torch.autocast(z.device.type, enabled=False):
        z = _unit(z)
        k, n, d = z.shape
        images = z.sum(dim=0)  # (N, D): summed over views
        together = (images.square().sum() - k * n) / (k * (k - 1) * n)
        everything = (images.sum(dim=0).square().sum() - images.square().sum()) / (k * k * n * (n - 1))
        flat = z.flatten(1)  # (K, N·D)
        return {
            "embedding_std": z.flatten(0, 1).std(dim=0).mean() * d**0.5,
            "positive_similarity": together,
            "negative_similarity": everything,
            "pair_similarity": flat @ flat.T / n,
        }


@torch.no_grad()
def per_pair(pair_loss: Callable[[int, int], Tensor], mask: Tensor) -> Tensor:
    """(K, K), symmetric: what each pair of the graph adds to the sum over pairs; 0 where there is none."""
    k = len(mask)
    losses = mask.new_zeros((k, k), dtype=torch.float32)
    for i in range(k):
        for j in range(i + 1, k):
            losses[i, j] = losses[j, i] = pair_loss(i, j)
    return torch.where(mask, losses, 0)


@torch.no_grad()
def positive_share(z: Tensor, keys: Tensor | None = None, *, tau: float) -> Tensor:
    """(K, L): the positive's share of the softmax over its candidates, mean over the N anchors of view i.

    The candidates are those of Eq. 1, or, given the keys (L, N, D) of a momentum encoder, all keys of view j.
    """
    with torch.autocast(z.device.type, enabled=False):
        own, z = keys is None, _unit(z)
        keys = z if keys is None else _unit(keys)
        itself = torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
        rows = []
        for anchors in z:
            others = (anchors @ anchors.T / tau).masked_fill(itself, -torch.inf).logsumexp(dim=1)  # (N)
            for candidates in keys:
                s = anchors @ candidates.T / tau  # (N, N)
                total = s.logsumexp(dim=1)
                total = torch.logaddexp(total, others) if own else total
                rows.append((s.diagonal() - total).exp().mean())
        return torch.stack(rows).view(len(z), len(keys))


def mean_over(mask: Tensor, matrix: Tensor) -> Tensor:
    """The mean of a (K, L) matrix where `mask` is true."""
    return torch.where(mask, matrix, 0).sum() / mask.sum()


def _unit(z: Tensor) -> Tensor:
    return unit(z.detach().to(wide(z)))[0]
