"""MoCo v3×K: every view finds its image's key among the keys of every view it is paired with."""

from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp import objective
from ecpp.method.parts import Method, Shared, Step, TargetViews, project
from ecpp.method.target import EMASchedule, Target, predict, towards
from ecpp.model import mlp
from ecpp.objective.diagnostics import mean_over, positive_share, similarities
from ecpp.objective.directed import contrast_terms
from ecpp.views import ViewBatch


class MoCoV3(Method):
    """Keys come from a momentum encoder, queries from a predictor; the paper's own loss is 4·tau times this one."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        tau: float = 0.2,
        ema: float = 0.99,
        ema_schedule: EMASchedule = "cosine",
        ema_pairs: int = 1,
        target_views: TargetViews = "all",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(encoder, projector, **shared)
        self.predictor, self.tau, self.target_views = predictor, tau, target_views
        self.target = Target(encoder, projector, ema=ema, schedule=ema_schedule, pairs=ema_pairs)

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {
            "projector": mlp(features, features, dim, layers=layers, final_bn=True),
            "predictor": mlp(dim, features, dim, layers=2, final_bn=True),
        }

    def embeddings(self, batch: ViewBatch) -> tuple[Tensor, ...]:
        z = self.embed(batch)
        keys = self.target(batch, self.bn_mode, self.target_views)
        return project(self.predictor, z), keys, z.detach()

    def compare(self, batch: ViewBatch, q: Tensor, keys: Tensor, z: Tensor, *, diagnose: bool) -> Step:
        loss, per_pair = predict(self, batch, q, keys, objective.cross, contrast_terms, tau=self.tau)
        if not diagnose:
            return Step(loss, {})
        share = mean_over(towards(self, batch, keys), positive_share(q, keys, tau=self.tau))
        shown = {"positive_share": share, "pair_loss": per_pair()}
        return Step(loss, similarities(z) | shown)

    def after_step(self, progress: float) -> None:
        self.target.follow(self.encoder, self.projector, progress)
