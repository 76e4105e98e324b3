"""MoCo v3×K: every view finds its image's key among the keys of every view it is paired with."""

from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp import objective
from ecpp.method.parts import Step
from ecpp.method.target import Followed, WithTarget, predict, towards
from ecpp.model import mlp
from ecpp.objective.diagnostics import mean_over, positive_share, similarities
from ecpp.objective.directed import contrast_terms
from ecpp.views import ViewBatch


class MoCoV3(WithTarget):
    """Keys come from a momentum encoder, queries from a predictor; the paper's own loss is 4·tau times this one."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        tau: float = 0.2,
        **followed: Unpack[Followed],
    ) -> None:
        super().__init__(encoder, projector, predictor, **followed)
        self.tau = tau

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {
            "projector": mlp(features, features, dim, layers=layers, final_bn=True),
            "predictor": mlp(dim, features, dim, layers=2, final_bn=True),
        }

    def compare(self, batch: ViewBatch, q: Tensor, keys: Tensor, z: Tensor, *, diagnose: bool) -> Step:
        loss, per_pair = predict(self, batch, q, keys, objective.cross, contrast_terms, tau=self.tau)
        if not diagnose:
            return Step(loss, {})
        share = mean_over(towards(self, batch, keys), positive_share(q, keys, tau=self.tau))
        shown = {"positive_share": share, "pair_loss": per_pair()}
        return Step(loss, similarities(z) | shown)
