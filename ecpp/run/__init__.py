"""Runs: their folders, and what is built from their configs."""

from ecpp.run.evaluate import evaluate_run
from ecpp.run.folder import RunFolder
from ecpp.run.load import load
from ecpp.run.pretrain import pretrain, resume

__all__ = ["RunFolder", "evaluate_run", "load", "pretrain", "resume"]
