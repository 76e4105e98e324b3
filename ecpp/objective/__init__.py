"""From embeddings to a loss: pure functions of (K, N, D) tensors and a pair graph."""

from ecpp.objective import pairs
from ecpp.objective.byol import byol
from ecpp.objective.contrastive import contrastive, cross
from ecpp.objective.pairwise import pairwise

__all__ = ["byol", "contrastive", "cross", "pairs", "pairwise"]
