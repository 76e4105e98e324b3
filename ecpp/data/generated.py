"""The source `patterns`: generated images that need no download."""

from functools import cached_property

import torch
from torch import Tensor

from ecpp.data import patterns
from ecpp.data.source import IN_MEMORY_BYTES, IN_MEMORY_SIDE, Splits

_TEST_FROM = 1 << 32  # far beyond any training image


class Patterns:
    """`n` generated images from index `first` on."""

    def __init__(self, first: int, n: int, size: int) -> None:
        self.indices = first + torch.arange(n)
        self.size = size
        self.classes = patterns.CLASSES
        self.labels: Tensor | None = patterns.labels(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return f"pattern {int(self.indices[index])}"

    def read(self, index: int) -> Tensor:
        return patterns.render(self.indices[index : index + 1], size=self.size)[0]

    def in_memory(self) -> Tensor | None:
        return self._pixels

    @cached_property
    def _pixels(self) -> Tensor | None:
        if self.size > IN_MEMORY_SIDE or len(self) * 3 * self.size**2 > IN_MEMORY_BYTES:
            return None
        return patterns.render(self.indices, size=self.size)


def open_patterns(options: str) -> Splits:
    """`""`, `NUMBER` or `NUMBERxSIZE`: that many training images (10,000 of 32 px), and a fifth to test on."""
    number, _, side = options.partition("x")
    try:
        n, size = int(number or 10_000), int(side or 32)
    except ValueError:
        raise ValueError(f"patterns:{options} is not patterns:NUMBER or patterns:NUMBERxSIZE") from None
    if n < 10 or size < 8:
        raise ValueError(f"patterns:{options} asks for {n} images of {size} px: take at least 10 of 8 px")
    return Splits(Patterns(0, n, size), Patterns(_TEST_FROM, max(10, n // 5), size))
