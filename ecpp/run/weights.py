"""A trained encoder from its run folder."""

from pathlib import Path

from torch import nn

from ecpp.run.build import build_encoder
from ecpp.run.folder import RunFolder
from ecpp.train import load_checkpoint

_PREFIX = "encoder."


def load(run: str | Path) -> nn.Module:
    """The encoder of a run, in eval mode on the CPU: (B, 3, H, W), normalised, to (B, `num_features`)."""
    folder = RunFolder(Path(run))
    config = folder.resolved()
    encoder = build_encoder(config)
    method = load_checkpoint(folder.checkpoint)["method"]
    weights = {k[len(_PREFIX) :]: v for k, v in method.items() if k.startswith(_PREFIX)}
    encoder.load_state_dict(weights, strict=True)
    return encoder.eval()
