"""Is it learning? Measures that need no labels, and a word of plain language for them."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

Record = dict[str, float]

_COLLAPSED_STD = 0.25  # of what embeddings have that point everywhere alike
_COLLAPSED_RANK = 2.0
_SHRUNK = 0.5  # of the best so far
_BETTER = 0.01  # relative; what is less is no improvement
_PATIENCE = 5  # epochs without one


@torch.no_grad()
def measure(h: Tensor, z: Tensor, other: Tensor) -> Record:
    """Of features `h` (N, D) and embeddings `z` and `other` (N, E) of two views of the same N images.

    rankme: the effective rank of h (Garrido et al. 2023); alpha: how fast its spectrum decays (Agrawal et al.
    2022); alignment and uniformity of the embeddings (Wang and Isola 2020); std: their standard deviation per
    dimension, 1 where they point everywhere alike and 0 where all are one.
    """
    h, z, other = h.double(), F.normalize(z.double(), dim=1), F.normalize(other.double(), dim=1)
    values = torch.linalg.svdvals(h)
    share = values / values.sum() + 1e-7
    return {
        "rankme": float(torch.exp(-(share * share.log()).sum())),
        "alpha": spectrum_decay(h),
        "alignment": float((z - other).square().sum(dim=1).mean()),
        "uniformity": float(torch.pdist(z).square().mul(-2).exp().mean().log()),
        "std": float(z.std(dim=0).mean() * z.shape[1] ** 0.5),
    }


def spectrum_decay(h: Tensor) -> float:
    """alpha of lambda_i ~ i^-alpha: a line through the eigenvalues of the covariance, log over log."""
    values = torch.linalg.svdvals(h - h.mean(dim=0)).square()
    values = values[values > values[0] * 1e-9]
    if len(values) < 3:
        return float("inf")
    x, y = torch.arange(1, len(values) + 1, device=h.device, dtype=h.dtype).log(), values.log()
    x, y = x - x.mean(), y - y.mean()
    return float(-(x * y).sum() / x.square().sum())


@dataclass
class History:
    """What was measured after each epoch, from which the verdict follows."""

    records: list[Record] = field(default_factory=list)

    def best(self, key: str) -> int | None:
        """The epoch (from 1) with the largest value."""
        known = [(r[key], -r["epoch"]) for r in self.records if key in r]
        return int(-max(known)[1]) if known else None

    def verdict(self) -> str:
        """One of: collapsing, healthy, still improving, plateau since epoch n."""
        now, peak = self.records[-1], max(r["rankme"] for r in self.records)
        collapsed = now["std"] < _COLLAPSED_STD or now["rankme"] < _COLLAPSED_RANK
        if collapsed or now["rankme"] < _SHRUNK * peak:
            return "collapsing"
        last = self._last_improvement()
        if now["epoch"] - last >= _PATIENCE:
            return f"plateau since epoch {last:.0f}"
        return "still improving" if last == now["epoch"] and len(self.records) > 1 else "healthy"

    def _last_improvement(self) -> float:
        """The last epoch in which the rank, or the accuracy of kNN, rose above all before."""
        last = self.records[0]["epoch"]
        for key in ("rankme", "knn"):
            best = None
            for r in self.records:
                if key in r and (best is None or r[key] > best * (1 + _BETTER)):
                    best, last = r[key], max(last, r["epoch"])
        return last
