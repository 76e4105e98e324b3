"""The training loop and what keeps it honest."""

from ecpp.train.checkpoint import load_checkpoint, newest_good, save_checkpoint
from ecpp.train.diagnose import Failure, diagnose
from ecpp.train.guard import Guard, NotFinite
from ecpp.train.loop import Hooks, Options, Progress, train
from ecpp.train.optim import build_optimizer, learning_rate
from ecpp.train.signals import Stopped

__all__ = ["Failure", "Guard", "Hooks", "NotFinite", "Options", "Progress", "Stopped", "build_optimizer", "diagnose",
           "learning_rate", "load_checkpoint", "newest_good", "save_checkpoint", "train"]  # fmt: skip
