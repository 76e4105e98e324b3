"""What views predict: the targets, which views they are made of, and what predicting them costs."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp.method.parts import BNMode, Method, Shared, TargetViews, encode, project
from ecpp.model.momentum import Momentum, ema_tau
from ecpp.objective import directed
from ecpp.views import ViewBatch

EMASchedule = Literal["cosine", "constant"]


class Target(nn.Module):
    """A copy of encoder and projector that follows them after every step, by `ema` at the start of training.

    It moves as if each step had been `pairs` of them: by tau to that power.
    """

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        *,
        ema: float,
        schedule: EMASchedule = "cosine",
        pairs: int = 1,
    ) -> None:
        super().__init__()
        self.encoder, self.projector = Momentum(encoder), Momentum(projector)
        self.ema, self.schedule, self.pairs = ema, schedule, pairs

    @torch.no_grad()
    def forward(self, batch: ViewBatch, bn_mode: BNMode, target_views: TargetViews) -> Tensor:
        """(K, N, D), or of the L large views alone (L, N, D)."""
        return project(self.projector, encode(self.encoder, batch, bn_mode, target_views))

    def follow(self, encoder: nn.Module, projector: nn.Module, progress: float) -> None:
        tau = (ema_tau(self.ema, progress) if self.schedule == "cosine" else self.ema) ** self.pairs
        self.encoder.update(encoder, tau)
        self.projector.update(projector, tau)


class Followed(Shared, total=False):
    """What every method with such a target takes by name."""

    ema: float
    ema_schedule: EMASchedule
    ema_pairs: int
    target_views: TargetViews


class WithTarget(Method):
    """The target sees all views, or ("large_only") those of the largest size, which alone are then predicted."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        ema: float = 0.99,
        ema_schedule: EMASchedule = "cosine",
        ema_pairs: int = 1,
        target_views: TargetViews = "all",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(encoder, projector, **shared)
        self.predictor, self.target_views = predictor, target_views
        self.target = Target(encoder, projector, ema=ema, schedule=ema_schedule, pairs=ema_pairs)

    def embeddings(self, batch: ViewBatch) -> tuple[Tensor, ...]:
        """Predictions, targets, and the projections to look at."""
        z = self.embed(batch)
        t = self.target(batch, self.bn_mode, self.target_views)
        return project(self.predictor, z), t, z.detach()

    def after_step(self, progress: float) -> None:
        self.target.follow(self.encoder, self.projector, progress)


def predict(
    method: Method,
    batch: ViewBatch,
    p: Tensor,
    t: Tensor,
    objective: Callable[..., Tensor],
    terms: Callable[..., Tensor],
    **options: Any,
) -> tuple[Tensor, Callable[[], Tensor]]:
    """The loss of predictions `p` (K, N, D) of targets `t`, and a function for what each pair adds to it, (K, K).

    With the targets of all views that is `objective` over the pairs of the graph, both ways; with those of
    the large views alone, the `terms` of the pairs that end in a large view.
    """
    if len(t) == len(p):
        loss = objective(p, t, method.pairs, pair_reduction=method.pair_reduction, **options)
        return loss, lambda: method.per_pair(partial(objective, **options), p, t)
    taught, costs = towards(method, batch, t), terms(p, t, **options)
    loss = directed.join(costs, taught, method.pair_reduction)
    return loss, lambda: directed.per_pair(costs, taught, batch.large)


def towards(method: Method, batch: ViewBatch, t: Tensor) -> Tensor:
    """(K, L): which views predict the targets `t`, those of all views or of the large ones."""
    places = tuple(range(batch.k)) if len(t) == batch.k else batch.large
    return directed.directions(method.pairs, batch.k, places, t.device)
