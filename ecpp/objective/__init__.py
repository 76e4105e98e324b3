"""From embeddings to a loss: pure functions of (K, N, D) tensors and a pair graph."""

from ecpp.objective import pairs
from ecpp.objective.byol import byol
from ecpp.objective.contrastive import contrastive, cross
from ecpp.objective.pairwise import pairwise
from ecpp.objective.regularised import barlow, vicreg
from ecpp.objective.whitening import wmse

__all__ = ["barlow", "byol", "contrastive", "cross", "pairs", "pairwise", "vicreg", "wmse"]
