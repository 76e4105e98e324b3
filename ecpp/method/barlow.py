"""Barlow Twins×K: the cross-correlation of every pair of views is drawn to the identity."""

from functools import partial

from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp import objective
from ecpp.method.parts import Method, Shared, Step
from ecpp.model import mlp
from ecpp.objective.diagnostics import similarities
from ecpp.views import ViewBatch


class BarlowTwins(Method):
    """`redundancy` weighs what is off the diagonal of a cross-correlation, the lambda of its paper."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        *,
        redundancy: float = 0.005,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(encoder, projector, **shared)
        self.redundancy = redundancy

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {"projector": mlp(features, dim, dim, layers=layers, final_bn=False)}

    def compare(self, batch: ViewBatch, z: Tensor, *, diagnose: bool) -> Step:
        barlow = partial(objective.barlow, redundancy=self.redundancy)
        loss = barlow(z, self.pairs, pair_reduction=self.pair_reduction)
        if not diagnose:
            return Step(loss, {})
        return Step(loss, similarities(z) | {"pair_loss": self.per_pair(barlow, z)})
