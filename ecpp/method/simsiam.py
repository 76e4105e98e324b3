"""SimSiam×K: every view predicts the embedding of every view it is paired with, whose gradient is stopped."""

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp.method.parts import Method, Shared, Step, TargetViews, project
from ecpp.method.target import predict
from ecpp.model import mlp
from ecpp.objective.diagnostics import similarities
from ecpp.objective.directed import regression, regression_terms
from ecpp.views import ViewBatch


class SimSiam(Method):
    """Its loss is 4 + 4 times the symmetrised negative cosine of the paper. Without `stop_gradient` it collapses."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        stop_gradient: bool = True,
        target_views: TargetViews = "all",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(encoder, projector, **shared)
        self.predictor, self.stop_gradient, self.target_views = predictor, stop_gradient, target_views

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        return {
            "projector": mlp(features, features, dim, layers=layers, final_bn=True),
            "predictor": mlp(dim, max(1, dim // 4), dim, layers=2, final_bn=False),
        }

    def embeddings(self, batch: ViewBatch) -> tuple[Tensor, ...]:
        z = self.embed(batch)
        return project(self.predictor, z), z

    def compare(self, batch: ViewBatch, p: Tensor, z: Tensor, *, diagnose: bool) -> Step:
        t = z if self.target_views == "all" else torch.stack([z[place] for place in batch.large])
        t = t.detach() if self.stop_gradient else t
        loss, per_pair = predict(self, batch, p, t, regression, regression_terms)
        if not diagnose:
            return Step(loss, {})
        return Step(loss, similarities(z) | {"pair_loss": per_pair()})
