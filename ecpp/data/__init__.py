"""From bytes to decoded images, and which of them come when."""

from ecpp.data.source import Images, Splits, Subset, check_classes, open_source, subset
from ecpp.data.stream import Stream

__all__ = ["Images", "Splits", "Stream", "Subset", "check_classes", "open_source", "subset"]
