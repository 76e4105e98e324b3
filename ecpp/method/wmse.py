"""W-MSE×K: every view is whitened over the batch, and paired views draw together."""

from functools import partial

from torch import Tensor, nn
from typing_extensions import Unpack

from ecpp import objective
from ecpp.method.parts import Method, Shared, Step
from ecpp.model import mlp
from ecpp.objective.diagnostics import similarities
from ecpp.views import ViewBatch


class WMSE(Method):
    """A batch must hold more images than the projector has outputs, better twice as many."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        *,
        shrinkage: float = 1e-6,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(encoder, projector, **shared)
        self.shrinkage = shrinkage

    @staticmethod
    def heads(features: int, dim: int, layers: int) -> dict[str, nn.Module]:
        # Whitening undoes the last BatchNorm, which is there for the diagnostics: they see embeddings that are centred.
        return {"projector": mlp(features, features, dim, layers=layers, final_bn=True)}

    def compare(self, batch: ViewBatch, z: Tensor, *, diagnose: bool) -> Step:
        wmse = partial(objective.wmse, shrinkage=self.shrinkage)
        loss = wmse(z, self.pairs, pair_reduction=self.pair_reduction)
        if not diagnose:
            return Step(loss, {})
        return Step(loss, similarities(z) | {"pair_loss": self.per_pair(wmse, z)})
