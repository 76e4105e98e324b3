"""SimCLR×K: every pair of the graph attracts, the other images of its two views repel (Eq. 3 and 4)."""

from functools import partial

from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp import objective
from ecpp.method.parts import Method, Shared, Step
from ecpp.model import mlp
from ecpp.objective.contrastive import Reduction
from ecpp.objective.diagnostics import mean_over, positive_share, similarities
from ecpp.views import ViewBatch


class SimCLR(Method):
    """`positive_in_denominator=False` is the loss of ECPP (Eq. 4), `True` that of SimCLR (Eq. 1)."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        *,
        tau: float = 0.2,
        positive_in_denominator: bool = False,
        reduction: Reduction = "mean",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(encoder, projector, **shared)
        self.tau, self.positive_in_denominator, self.reduction = tau, positive_in_denominator, reduction

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {"projector": mlp(features, features, dim, layers=layers, final_bn=True)}

    def compare(self, batch: ViewBatch, z: Tensor, *, diagnose: bool) -> Step:
        contrastive = partial(
            objective.contrastive,
            tau=self.tau,
            positive_in_denominator=self.positive_in_denominator,
            reduction=self.reduction,
        )
        loss = contrastive(z, self.pairs, pair_reduction=self.pair_reduction)
        if not diagnose:
            return Step(loss, {})
        share = mean_over(self.graph(z), positive_share(z, tau=self.tau))
        shown = {"positive_share": share, "pair_loss": self.per_pair(contrastive, z)}
        return Step(loss, similarities(z) | shown)
