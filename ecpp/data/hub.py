"""Data sets that torchvision knows how to download."""

import inspect
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ecpp.data.decode import from_pil
from ecpp.data.source import HELD_OUT, Decoded, Splits, decode_all
from ecpp.data.unreadable import named

CACHE = Path("~/.cache/ecpp/torchvision")


class TorchvisionImages:
    """One split of a torchvision data set."""

    def __init__(self, dataset: Any, *, channels: int = 3) -> None:
        self.dataset, self.channels = dataset, channels
        labels = getattr(dataset, "targets", getattr(dataset, "labels", getattr(dataset, "_labels", None)))
        self.labels: Tensor | None = None if labels is None else torch.as_tensor(labels).long().flatten()
        count = 0 if self.labels is None else int(self.labels.max()) + 1
        self.classes = tuple(map(str, getattr(dataset, "classes", range(count))))

    def __len__(self) -> int:
        return len(self.dataset)

    def name(self, index: int) -> str:
        return f"{type(self.dataset).__name__} {index}"

    def read(self, index: int) -> Tensor:
        from PIL import Image

        with named(self.name(index)):
            image = self.dataset[index][0]
            if isinstance(image, Image.Image):
                return from_pil(image, self.channels)
        raise ValueError(
            f"{self.name(index)} is a {type(image).__name__}: only data sets of images can be taken"
        )

    def encoded(self, index: int) -> None:
        """torchvision keeps the files to itself."""

    def in_memory(self) -> Decoded | None:
        return self._decoded

    @cached_property
    def _decoded(self) -> Decoded | None:
        return decode_all(self)


def open_torchvision(name: str, *, channels: int = 3) -> Splits:
    """`torchvision.datasets.NAME`, downloaded once, split by its own `train` or `split` argument."""
    from torchvision import datasets

    kind: Any = getattr(datasets, name, None)
    if not inspect.isclass(kind):
        near = [n for n in datasets.__all__ if n.lower().startswith(name[:3].lower())]
        raise ValueError(f"torchvision has no data set {name!r}; near: {', '.join(near) or 'none'}")
    accepted = inspect.signature(kind).parameters
    create: Any = kind
    common: dict[str, Any] = {}
    if "root" in accepted:
        common["root"] = str(CACHE.expanduser() / name)
    if "download" in accepted:
        common["download"] = True

    try:
        if "train" in accepted:
            train, test = (create(**common, train=side) for side in (True, False))
        elif "split" in accepted:
            train, test = create(**common, split="train"), _held_out(create, common)
        else:
            train, test = create(**common), None
    except (OSError, RuntimeError, TypeError, ValueError) as e:
        raise ValueError(f"torchvision could not open {name}: {e}") from e
    held_out = None if test is None else TorchvisionImages(test, channels=channels)
    return Splits(TorchvisionImages(train, channels=channels), held_out)


def _held_out(create: Any, common: dict[str, Any]) -> Any:
    """The first split to count on that a data set knows; those that are unknown are ValueErrors."""
    for split in HELD_OUT:
        with suppress(ValueError):
            return create(**common, split=split)
    return None
