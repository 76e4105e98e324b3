"""Runs: their folders, and what is built from their configs."""

from ecpp.run.curve import curve_of_run
from ecpp.run.folder import Epoch, RunFolder
from ecpp.run.judge import evaluate_run
from ecpp.run.start import pretrain, resume
from ecpp.run.weights import load
from ecpp.train import Stopped

__all__ = ["Epoch", "RunFolder", "Stopped", "curve_of_run", "evaluate_run", "load", "pretrain", "resume"]
