"""From bytes to decoded images, and which of them come when."""

from ecpp.data.source import Images, Splits, Subset, check_classes, open_source, subset, take
from ecpp.data.stream import Stream
from ecpp.data.unreadable import Unreadable
from ecpp.data.workers import by_workers

__all__ = [
    "Images",
    "Splits",
    "Stream",
    "Subset",
    "Unreadable",
    "by_workers",
    "check_classes",
    "open_source",
    "subset",
    "take",
]
