"""From bytes to decoded images, and which of them come when."""

from ecpp.data.source import Images, Splits, open_source, subset
from ecpp.data.stream import Stream

__all__ = ["Images", "Splits", "Stream", "open_source", "subset"]
