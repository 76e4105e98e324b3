"""Methods: modules from a ViewBatch to a Step. The training loop knows nothing of K."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ecpp import distributed, objective
from ecpp.model.momentum import Momentum, ema_tau
from ecpp.objective.contrastive import PairReduction, Reduction
from ecpp.views import ViewBatch

BNMode = Literal["per_group", "per_view"]


class Step(NamedTuple):
    """What one batch teaches: a loss to go backward from, and values to look at, all without gradient."""

    loss: Tensor
    metrics: dict[str, Tensor]


def encode(encoder: nn.Module, batch: ViewBatch, bn_mode: BNMode = "per_group") -> Tensor:
    """All views through the encoder, as (K, N, D): one forward pass per resolution, or one per view.

    The passes differ in what BatchNorm averages over: all views of a resolution, or each view by itself.
    """
    if bn_mode not in ("per_group", "per_view"):
        raise ValueError(f"bn_mode must be per_group or per_view, but is {bn_mode!r}")
    parts = []
    for images, places in zip(batch.groups, batch.order, strict=True):
        if bn_mode == "per_group":
            parts.append(encoder(images))
        else:
            parts.append(torch.cat([encoder(view) for view in images.chunk(len(places))]))
    return batch.stack(parts)


def project(head: nn.Module, h: Tensor) -> Tensor:
    """(K, N, D) through a head in one pass over all views."""
    out: Tensor = head(h.flatten(0, 1))
    return out.view(*h.shape[:2], -1)


class SimCLR(nn.Module):
    """SimCLR×K: every pair of the graph attracts, the other images of its two views repel (Eq. 3 and 4)."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        *,
        tau: float = 0.2,
        positive_in_denominator: bool = False,
        pairs: Tensor | None = None,
        reduction: Reduction = "mean",
        pair_reduction: PairReduction = "sum",
        bn_mode: BNMode = "per_group",
    ) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, projector
        self.tau, self.positive_in_denominator = tau, positive_in_denominator
        self.reduction, self.pair_reduction, self.bn_mode = reduction, pair_reduction, bn_mode
        self.register_buffer("pairs", pairs, persistent=False)

    pairs: Tensor | None

    def forward(self, batch: ViewBatch, diagnose: bool = True) -> Step:
        z = distributed.gather(project(self.projector, encode(self.encoder, batch, self.bn_mode)))
        loss = objective.contrastive(
            z,
            self.pairs,
            tau=self.tau,
            positive_in_denominator=self.positive_in_denominator,
            reduction=self.reduction,
            pair_reduction=self.pair_reduction,
        )
        return Step(loss, diagnostics(z) if diagnose else {})

    def after_step(self, progress: float) -> None:
        """Nothing follows the optimizer's step."""


class BYOL(nn.Module):
    """BYOL×K: every view predicts the slowly moving embedding of every view it is paired with."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        pairs: Tensor | None = None,
        pair_reduction: PairReduction = "sum",
        ema: float = 0.99,
        bn_mode: BNMode = "per_group",
    ) -> None:
        super().__init__()
        self.encoder, self.projector, self.predictor = encoder, projector, predictor
        self.target_encoder, self.target_projector = Momentum(encoder), Momentum(projector)
        self.pair_reduction, self.ema, self.bn_mode = pair_reduction, ema, bn_mode
        self.register_buffer("pairs", pairs, persistent=False)

    pairs: Tensor | None

    def forward(self, batch: ViewBatch, diagnose: bool = True) -> Step:
        z = project(self.projector, encode(self.encoder, batch, self.bn_mode))
        p = project(self.predictor, z)
        with torch.no_grad():
            t = project(self.target_projector, encode(self.target_encoder, batch, self.bn_mode))
        loss = objective.byol(p, t, self.pairs, pair_reduction=self.pair_reduction)
        return Step(loss, diagnostics(z) if diagnose else {})

    def after_step(self, progress: float) -> None:
        """The target follows the online network, more slowly as `progress` goes from 0 to 1."""
        tau = ema_tau(self.ema, progress)
        self.target_encoder.update(self.encoder, tau)
        self.target_projector.update(self.projector, tau)


Method = SimCLR | BYOL


@torch.no_grad()
def diagnostics(z: Tensor) -> dict[str, Tensor]:
    """Is it learning? Spread of the embeddings (1 is even over all directions, 0 is collapse) and similarities."""
    z = F.normalize(z.detach().float(), dim=-1)
    k, n, d = z.shape
    images = z.sum(dim=0)  # (N, D): summed over views
    together = (images.square().sum() - k * n) / (k * (k - 1) * n)
    everything = (images.sum(dim=0).square().sum() - images.square().sum()) / (k * k * n * (n - 1))
    return {
        "embedding_std": z.flatten(0, 1).std(dim=0).mean() * d**0.5,
        "positive_similarity": together,
        "negative_similarity": everything,
    }
