"""From frozen encoders to numbers."""

from ecpp.evaluate.features import Preprocess, calibrate, features
from ecpp.evaluate.knn import knn_accuracy
from ecpp.evaluate.linear import LinearProtocol, linear_probe

__all__ = ["LinearProtocol", "Preprocess", "calibrate", "features", "knn_accuracy", "linear_probe"]
