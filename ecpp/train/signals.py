"""A run that is told to stop finishes its step and saves."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(Exception):
    """The run was told to stop, and is saved."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What shells say of a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


@contextmanager
def listening() -> Iterator[Callable[[], int]]:
    """A function that gives the number of the signal (SIGTERM or SIGINT) that came, or 0.

    A second signal acts as it would without us. Outside the main thread Python delivers none.
    """
    received = [0]
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        received[0] = number
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, receive)
    try:
        yield lambda: received[0]
    finally:
        restore()
