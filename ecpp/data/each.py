"""One function applied to every image of a split, by worker processes, in order."""

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from ecpp.data.source import Images
from ecpp.data.unreadable import Unreadable

T = TypeVar("T")


def each(
    images: Images, function: Callable[[Images, int], T], *, workers: int | None = None
) -> Iterator[T | Unreadable]:
    """`function(images, i)` for i = 0, 1, …; where that raises Unreadable, the error itself.

    Both must survive pickling. Results should be plain values, no tensors: those would come through shared
    memory, of which containers have little.
    """
    workers = default_workers() if workers is None else workers
    if workers < 0:
        raise ValueError(f"--workers is {workers}: give a number of processes, or 0 for none beside this one")
    loader = DataLoader(
        _Applied(images, function),
        batch_size=None,  # one image at a time, so that few wait in memory, however large they are
        collate_fn=_as_it_is,
        num_workers=min(workers, len(images)),
        worker_init_fn=_one_thread,
        generator=torch.Generator(),  # the global one is left alone
    )
    for result in loader:
        if isinstance(result, _Failed):
            raise result.error
        yield result


def default_workers() -> int:
    """As many processes as there are cores, and no more than 8."""
    if hasattr(os, "sched_getaffinity"):
        return min(8, len(os.sched_getaffinity(0)))  # a container may lend fewer than the machine has
    return min(8, os.cpu_count() or 1)


class _Failed:
    """Any other error: raised in the main process, as one sentence and not as a worker's traceback."""

    def __init__(self, error: ValueError | OSError | ImportError) -> None:
        self.error = error


class _Applied(Dataset[Any]):
    def __init__(self, images: Images, function: Callable[[Images, int], Any]) -> None:
        self.images, self.function = images, function

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.function(self.images, index)
        except Unreadable as e:
            return e
        except (ValueError, OSError, ImportError) as e:
            return _Failed(e)


def _as_it_is(item: T) -> T:
    return item


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)  # the processes share the cores
