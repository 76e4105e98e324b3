"""A trained encoder from its run folder."""

from pathlib import Path

import torch
from torch import nn

from ecpp.run.build import build_encoder, build_preprocess
from ecpp.run.folder import Epoch, RunFolder
from ecpp.train import load_checkpoint, save_checkpoint

_PREFIX = "encoder."


def load(run: str | Path, *, epoch: Epoch = None) -> nn.Module:
    """The encoder of a run, in eval mode on the CPU: (B, C, H, W) to (B, D).

    `encoder.preprocess` says what it expects: the size, mean and std of its training. `epoch` takes the weights
    that `--keep-epochs` kept after that epoch, or "best" those of `--keep-best`; None takes the newest.
    """
    folder = RunFolder(Path(run))
    config = folder.resolved()
    file = folder.weights(epoch)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        encoder = build_encoder(config)
    state = load_checkpoint(file)
    weights = state.get("encoder")
    if weights is None:
        weights = {k[len(_PREFIX) :]: v for k, v in state.get("method", {}).items() if k.startswith(_PREFIX)}
    try:
        encoder.load_state_dict(weights, strict=True)
    except RuntimeError as e:
        raise ValueError(f"{file} does not fit the encoder that the run's run.json names: {e}") from e
    encoder.preprocess = build_preprocess(config)  # type: ignore[assignment]
    return encoder.eval()


def keep_epoch(folder: RunFolder, encoder: nn.Module, epoch: int) -> None:
    """Write the encoder as it is after an epoch, for `load`."""
    file = folder.epoch(epoch)
    file.parent.mkdir(exist_ok=True)
    save_checkpoint({"encoder": encoder.state_dict()}, file)
