"""From embeddings to a loss: pure functions of (K, N, D) tensors and a pair graph."""

from ecpp.objective import pairs
from ecpp.objective.byol import byol
from ecpp.objective.contrastive import contrastive
from ecpp.objective.regularised import barlow, vicreg
from ecpp.objective.whitening import wmse

__all__ = ["barlow", "byol", "contrastive", "pairs", "vicreg", "wmse"]
