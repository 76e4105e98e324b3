"""The training loop and what keeps it honest."""

from ecpp.train.checkpoint import load_checkpoint, save_checkpoint
from ecpp.train.loop import Progress, train
from ecpp.train.optim import build_optimizer, learning_rate

__all__ = ["Progress", "build_optimizer", "learning_rate", "load_checkpoint", "save_checkpoint", "train"]
