"""A trained encoder from its run folder."""

from pathlib import Path

import torch
from torch import nn

from ecpp.run.build import build_encoder, build_preprocess
from ecpp.run.folder import RunFolder
from ecpp.train import load_checkpoint

_PREFIX = "encoder."


def load(run: str | Path) -> nn.Module:
    """The encoder of a run, in eval mode on the CPU: (B, 3, H, W) to (B, D).

    `encoder.preprocess` says what it expects: the size, mean and std of its training.
    """
    folder = RunFolder(Path(run))
    config = folder.resolved()
    if not folder.checkpoint.exists():
        raise FileNotFoundError(f"{run} has no checkpoint yet: `ecpp resume {run}` goes on with it")
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        encoder = build_encoder(config)
    method = load_checkpoint(folder.checkpoint)["method"]
    weights = {k[len(_PREFIX) :]: v for k, v in method.items() if k.startswith(_PREFIX)}
    try:
        encoder.load_state_dict(weights, strict=True)
    except RuntimeError as e:
        raise ValueError(
            f"the checkpoint of {run} does not fit the encoder that its run.json names: {e}"
        ) from e
    encoder.preprocess = build_preprocess(config)  # type: ignore[assignment]
    return encoder.eval()
