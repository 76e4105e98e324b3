"""VICReg×K: paired views draw together, and every view keeps its variance and decorrelates."""

from functools import partial

from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp import objective
from ecpp.method.parts import Method, Shared, Step
from ecpp.model import mlp
from ecpp.objective.diagnostics import similarities
from ecpp.views import ViewBatch


class VICReg(Method):
    """The weights are those of its paper."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        *,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(encoder, projector, **shared)
        self.invariance, self.variance, self.covariance = invariance, variance, covariance

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {"projector": mlp(features, dim, dim, layers=layers, final_bn=False)}

    def compare(self, batch: ViewBatch, z: Tensor, *, diagnose: bool) -> Step:
        vicreg = partial(
            objective.vicreg,
            invariance=self.invariance,
            variance=self.variance,
            covariance=self.covariance,
        )
        loss = vicreg(z, self.pairs, pair_reduction=self.pair_reduction)
        if not diagnose:
            return Step(loss, {})
        return Step(loss, similarities(z) | {"pair_loss": self.per_pair(vicreg, z)})
