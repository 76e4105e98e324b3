"""Batches made by worker processes: what they share whoever asks for them."""

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

K_contra = TypeVar("K_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)
K = TypeVar("K")
T = TypeVar("T")

_MMAP_THRESHOLD = -3  # glibc's name for that option of mallopt
PREFETCHED = 2  # batches that each worker holds ready
SHARED = "/dev/shm"


class Maker(Protocol[K_contra, T_co]):
    """From the keys of one batch to the batch. It is sent to the workers, so it must survive pickling."""

    def __call__(self, keys: Sequence[K_contra], /) -> T_co: ...


def by_workers(
    make: Maker[K, T],
    batches: Iterable[list[K]],
    *,
    workers: int,
    batch_bytes: int,
    pinned: bool = False,
    start_method: str | None = None,
) -> Iterator[T]:
    """`make(keys)` for each list of keys, in order, by `workers` processes, or by this one if there are none.

    `start_method` is fork, spawn or forkserver; None takes what is usual on the system.
    """
    if workers:
        _check_shared_memory((PREFETCHED * workers + 1) * batch_bytes, workers)
    loader = DataLoader(
        _Made(make),
        batch_sampler=batches,  # any iterable of lists serves
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=_settle,
        pin_memory=pinned,
        prefetch_factor=PREFETCHED if workers else None,
        multiprocessing_context=start_method if workers else None,
        generator=torch.Generator(),  # the global one belongs to the model
    )
    try:
        for batch in loader:
            if isinstance(batch, Failure):
                raise batch.error
            yield batch
    except RuntimeError as e:
        if "DataLoader worker" not in str(e):
            raise
        raise OSError(
            f"a process that decodes images was ended from outside ({str(e).splitlines()[0]}): most often the memory "
            f"was full. Fewer than {workers} --workers need less of it"
        ) from e


class Failure:
    """An error of a worker, raised in the main process: as one sentence, and not as a worker's traceback."""

    def __init__(self, error: ValueError | OSError | ImportError) -> None:
        self.error = error


class _Made(Dataset[Any], Generic[K, T]):
    def __init__(self, make: Maker[K, T]) -> None:
        self.make = make

    def __getitems__(self, keys: list[K]) -> T | Failure:
        try:
            return self.make(keys)
        except (ValueError, OSError, ImportError) as e:
            return Failure(e)


def _check_shared_memory(needed: int, workers: int) -> None:
    """Containers have little of it, and the system kills without a word what takes more."""
    if not os.path.isdir(SHARED):
        return
    status = os.statvfs(SHARED)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise ValueError(
            f"{workers} workers need about {needed >> 20:,} MiB of shared memory, but {SHARED} has "
            f"{free >> 20:,} left: give the container more (--shm-size), or take fewer --workers; 0 needs none"
        )


def _as_it_is(item: T) -> T:
    return item


def _settle(_: int) -> None:
    """How a worker lives: on one core, as the encoder needs them too, and without a heap full of holes."""
    torch.set_num_threads(1)
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        # What takes more goes back to the system when it is freed. By itself glibc raises this mark to the size of
        # whatever was freed, and images of all sizes then leave holes between what stays.
        library.mallopt(_MMAP_THRESHOLD, 128 * 1024)
