"""From views to embeddings: encoders, projection heads and the slowly moving target."""

from ecpp.model.encoder import create_encoder, probe, shrinks_to_a_pixel
from ecpp.model.heads import mlp
from ecpp.model.momentum import Momentum

__all__ = ["Momentum", "create_encoder", "mlp", "probe", "shrinks_to_a_pixel"]
