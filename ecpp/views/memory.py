"""Fresh memory for the pixels of a batch."""

import ctypes
import mmap
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

_LARGE = 1 << 25  # bytes: what is larger, glibc gives back to the system and asks for anew


def fresh(*shape: int, device: torch.device) -> Tensor:
    """An empty float tensor. Of large ones Linux is asked for huge pages: small pages cost a fault each."""
    out = torch.empty(shape, device=device)
    if device.type == "cpu" and out.nbytes >= _LARGE and (advise := _advise()):
        first = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (out.data_ptr() + out.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(
            ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE
        )  # a hint: its answer is nothing
    return out


@cache
def _advise() -> Callable[..., int] | None:
    """Linux's madvise, where there is one."""
    return ctypes.CDLL(None).madvise if hasattr(mmap, "MADV_HUGEPAGE") else None
