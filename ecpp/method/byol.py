"""BYOL×K: every view predicts the slowly moving embedding of every view it is paired with."""

from torch import Tensor, nn

from ecpp import objective
from ecpp.method.parts import Step
from ecpp.method.target import WithTarget, predict
from ecpp.model import mlp
from ecpp.objective.diagnostics import similarities
from ecpp.objective.directed import regression_terms
from ecpp.views import ViewBatch


class BYOL(WithTarget):
    """With two views and all of them as targets, the loss of the paper."""

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {
            "projector": mlp(features, features, dim, layers=layers, final_bn=False),
            "predictor": mlp(dim, features, dim, layers=2, final_bn=False),
        }

    def compare(self, batch: ViewBatch, p: Tensor, t: Tensor, z: Tensor, *, diagnose: bool) -> Step:
        loss, per_pair = predict(self, batch, p, t, objective.byol, regression_terms)
        if not diagnose:
            return Step(loss, {})
        return Step(loss, similarities(z) | {"pair_loss": per_pair()})
