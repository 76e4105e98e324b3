"""Data sets that torchvision knows how to download."""

import inspect
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ecpp.data.decode import to_channels
from ecpp.data.source import Decoded, Splits, decode_all

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
        from torchvision.transforms.functional import pil_to_tensor

        image: Tensor = pil_to_tensor(self.dataset[index][0].convert("RGB"))
        return to_channels(image, self.channels, self.name(index))

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
    common: dict[str, Any] = {}
    if "root" in accepted:
        common["root"] = str(CACHE.expanduser() / name)
    if "download" in accepted:
        common["download"] = True

    def split(train: bool) -> Any:
        if "train" in accepted:
            return kind(**common | {"train": train})
        if "split" in accepted:
            return kind(**common | {"split": "train" if train else "test"})
        return kind(**common) if train else None

    try:
        train, test = split(True), split(False)
    except (OSError, RuntimeError, TypeError, ValueError) as e:
        raise ValueError(f"torchvision could not open {name}: {e}") from e
    held_out = None if test is None else TorchvisionImages(test, channels=channels)
    return Splits(TorchvisionImages(train, channels=channels), held_out)
