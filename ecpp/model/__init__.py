"""From views to embeddings: encoders, projection heads and the slowly moving target."""

from ecpp.model import entries as entries
from ecpp.model.encoder import Entry, create_encoder, probe, shrinks_to_a_pixel, timm_entry
from ecpp.model.heads import mlp
from ecpp.model.momentum import Momentum

__all__ = ["Entry", "Momentum", "create_encoder", "mlp", "probe", "shrinks_to_a_pixel", "timm_entry"]
