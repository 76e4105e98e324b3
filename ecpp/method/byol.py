"""BYOL×K: every view predicts the slowly moving embedding of every view it is paired with."""

from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp import objective
from ecpp.method.parts import Method, Shared, Step, TargetViews, project
from ecpp.method.target import EMASchedule, Target, predict
from ecpp.model import mlp
from ecpp.objective.diagnostics import similarities
from ecpp.objective.directed import regression_terms
from ecpp.views import ViewBatch


class BYOL(Method):
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

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {
            "projector": mlp(features, features, dim, layers=layers, final_bn=False),
            "predictor": mlp(dim, features, dim, layers=2, final_bn=False),
        }

    def embeddings(self, batch: ViewBatch) -> tuple[Tensor, ...]:
        z = self.embed(batch)
        t = self.target(batch, self.bn_mode, self.target_views)
        return project(self.predictor, z), t, z.detach()

    def compare(self, batch: ViewBatch, p: Tensor, t: Tensor, z: Tensor, *, diagnose: bool) -> Step:
        loss, per_pair = predict(self, batch, p, t, objective.byol, regression_terms)
        if not diagnose:
            return Step(loss, {})
        return Step(loss, similarities(z) | {"pair_loss": per_pair()})

    def after_step(self, progress: float) -> None:
        self.target.follow(self.encoder, self.projector, progress)
