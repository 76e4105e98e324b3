"""From frozen encoders to numbers."""

from ecpp.evaluate.cache import FeatureCache
from ecpp.evaluate.features import Features, Preprocess, calibrate, features
from ecpp.evaluate.finetune import FinetuneProtocol, finetune, linear_aug
from ecpp.evaluate.knn import knn_accuracy
from ecpp.evaluate.linear import LinearProtocol, fit_linear
from ecpp.evaluate.protocols import FROZEN, Outcome, Sides
from ecpp.evaluate.score import Score, score

__all__ = [
    "FROZEN",
    "FeatureCache",
    "Features",
    "FinetuneProtocol",
    "LinearProtocol",
    "Outcome",
    "Preprocess",
    "Score",
    "Sides",
    "calibrate",
    "features",
    "finetune",
    "fit_linear",
    "knn_accuracy",
    "linear_aug",
    "score",
]
