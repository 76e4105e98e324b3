"""The source `patterns`: generated images that need no download."""

from functools import cached_property

import torch
from torch import Tensor

from ecpp.data import patterns
from ecpp.data.decode import to_channels
from ecpp.data.source import IN_MEMORY_BYTES, IN_MEMORY_SIDE, Decoded, Splits

_TEST_FROM = 1 << 32  # far beyond any training image


class Patterns:
    """`n` generated images from index `first` on."""

    def __init__(self, first: int, n: int, size: int, *, channels: int = 3) -> None:
        self.indices = first + torch.arange(n)
        self.size, self.channels = size, channels
        self.classes = patterns.CLASSES
        self.labels: Tensor | None = patterns.labels(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return f"pattern {int(self.indices[index])}"

    def read(self, index: int) -> Tensor:
        return self._render(self.indices[index : index + 1])[0]

    def encoded(self, index: int) -> None:
        """There is no file."""

    def _render(self, indices: Tensor) -> Tensor:
        return to_channels(patterns.render(indices, size=self.size), self.channels, "patterns")

    def in_memory(self) -> Decoded | None:
        return self._decoded

    @cached_property
    def _decoded(self) -> Decoded | None:
        if self.size > IN_MEMORY_SIDE or len(self) * 3 * self.size**2 > IN_MEMORY_BYTES:
            return None
        return Decoded(self._render(self.indices), {})


def open_patterns(options: str, *, channels: int = 3) -> Splits:
    """`""`, `NUMBER` or `NUMBERxSIZE`: that many training images (10,000 of 32 px), and a fifth to test on."""
    number, _, side = options.partition("x")
    try:
        n, size = int(number or 10_000), int(side or 32)
    except ValueError:
        raise ValueError(f"patterns:{options} is not patterns:NUMBER or patterns:NUMBERxSIZE") from None
    if n < 10 or size < 8:
        raise ValueError(f"patterns:{options} asks for {n} images of {size} px: take at least 10 of 8 px")
    train = Patterns(0, n, size, channels=channels)
    return Splits(train, Patterns(_TEST_FROM, max(10, n // 5), size, channels=channels))
