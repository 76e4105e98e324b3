"""From frozen encoders to numbers."""

from ecpp.evaluate.features import Features, Preprocess, calibrate, features
from ecpp.evaluate.knn import knn_accuracy
from ecpp.evaluate.linear import LinearProtocol, fit_linear
from ecpp.evaluate.score import Score, score

__all__ = [
    "Features",
    "LinearProtocol",
    "Preprocess",
    "Score",
    "calibrate",
    "features",
    "fit_linear",
    "knn_accuracy",
    "score",
]
