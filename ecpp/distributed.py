"""Ranks: the processes that share one training, and what they tell each other. A leaf that anyone may import."""

import inspect
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

T = TypeVar("T")


def world() -> int:
    """How many processes train together; 1 without a group."""
    return dist.get_world_size() if _grouped() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if _grouped() else 0


def is_main() -> bool:
    """Whether this process writes and speaks for all."""
    return rank() == 0


def _grouped() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def start(device: str = "cpu") -> Iterator[None]:
    """Join the group that torchrun's environment names; without torchrun, or within a group, nothing happens.

    A process that is not heard of for ECPP_TIMEOUT seconds (1800) counts as lost, and ends all others.

    NCCL carries tensors on GPUs, one GPU per process of a host, and Gloo those on CPUs.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or _grouped():
        yield
        return
    backend = "gloo"
    if device.startswith("cuda"):
        local, here = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= here:
            raise ValueError(f"process {local + 1} of this host has no GPU: take --nproc-per-node {here}")
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    patience = timedelta(seconds=float(os.environ.get("ECPP_TIMEOUT", "1800")))
    store, number, count = next(iter(rendezvous("env://", timeout=patience)))
    store = _of_this_start(store, number, count, patience.total_seconds())
    dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=patience)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _of_this_start(store: Store, number: int, count: int, patience: float) -> Store:
    """A part of torchrun's store that no earlier start has written to.

    After a restart the store may still name the addresses of the dead, to which the living would then connect.
    So each process draws a name, and the first one tells all others its own, under theirs.
    """
    mine, end = secrets.token_hex(8), time.monotonic() + patience
    others = set(range(1, count))
    chosen = mine
    if number:
        store.set(f"ecpp/hello/{number}", mine)
        others = {0}
    while others:
        if time.monotonic() > end:
            raise OSError(f"of {count} processes {len(others)} did not come within {patience:.0f} s")
        if number:
            if store.check([f"ecpp/welcome/{mine}"]):
                chosen = store.get(f"ecpp/welcome/{mine}").decode()
                store.set(f"ecpp/joined/{chosen}/{number}", "yes")
                break
        else:
            for other in tuple(others):
                if store.check([f"ecpp/joined/{mine}/{other}"]):
                    others.remove(other)
                elif store.check(
                    [f"ecpp/hello/{other}"]
                ):  # perhaps that of a dead one: asked again until it joins
                    store.set(f"ecpp/welcome/{store.get(f'ecpp/hello/{other}').decode()}", mine)
        time.sleep(0.02)
    return PrefixStore(f"ecpp/{chosen}", store)


def wrap(module: nn.Module) -> nn.Module:
    """`module` with its gradients averaged over ranks; one forward pass per backward pass."""
    if world() == 1:
        return module
    # BatchNorm is synchronised, so the buffers of all ranks are equal without being sent at every step.
    ddp = nn.parallel.DistributedDataParallel
    known = inspect.signature(ddp).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    unsent: dict[str, Any] = {name: False}
    return ddp(module, gradient_as_bucket_view=True, **unsent)


def gather(z: Tensor) -> Tensor:
    """(K, n, D) of every rank as (K, N, D), in the order of the ranks, with gradient."""
    return z if world() == 1 else cast(Tensor, _Gather.apply(z))


class _Gather(torch.autograd.Function):
    """The loss of all is the mean of the ranks' losses, and DDP takes that mean of the gradients.

    So what a rank owes its own rows is the plain sum of what all losses say of them: DDP divides it by W.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        parts = [torch.empty_like(z, memory_format=torch.contiguous_format) for _ in range(world())]
        dist.all_gather(parts, z.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("gathered embeddings have no second derivative")
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(world(), dim=1)[rank()]


@torch.no_grad()
def gather_rows(x: Tensor) -> Tensor:
    """The rows of all ranks, first dimensions of any length, in the order of the ranks; no gradient."""
    if world() == 1:
        return x
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(world())]
    dist.all_gather(lengths, torch.tensor([len(x)]))
    longest = max(int(n) for n in lengths)
    padded = x.new_zeros(longest, *x.shape[1:])
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, lengths, strict=True)])


@torch.no_grad()
def mean(values: Tensor) -> Tensor:
    """The mean over ranks."""
    if world() == 1:
        return values
    values = values.clone()
    dist.all_reduce(values)
    return values / world()


@torch.no_grad()
def average(tensors: list[Tensor]) -> None:
    """Each tensor becomes its mean over ranks, in place: what DDP does to gradients, where it is not used."""
    if world() == 1 or not tensors:
        return
    joined = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(joined)
    joined /= world()
    for t, part in zip(tensors, torch.split(joined, [t.numel() for t in tensors]), strict=True):
        t.copy_(part.view(t.shape))


@torch.no_grad()
def largest(values: Tensor) -> Tensor:
    """The largest over ranks, element by element."""
    if world() == 1:
        return values
    values = values.clone()
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def anywhere(flags: Tensor) -> Tensor:
    """True where any rank says so."""
    return largest(flags.to(torch.uint8)).bool()


def barrier() -> None:
    """Wait until every rank is here."""
    largest(torch.zeros(1))


class Elsewhere(ValueError):
    """Another rank failed and has said why; this one only ends too."""

    told = True


def first(call: Callable[[], T]) -> T:
    """What `call` gives on the first rank, on every rank; its mistake ends all of them, and is told once."""
    if world() == 1:
        return call()
    told: list[Any] = [None, None]
    error: ValueError | OSError | None = None
    if is_main():
        try:
            told[0] = call()
        except (ValueError, OSError) as e:
            told[1], error = str(e), e
    dist.broadcast_object_list(told, src=0)
    if error is not None:
        raise error
    if told[1] is not None:
        raise Elsewhere(told[1])
    return cast(T, told[0])


class Word:
    """One yes of any rank, known to all at the same step: sent while one step is computed, read after the next."""

    def __init__(self) -> None:
        self._flag = torch.zeros(1, dtype=torch.uint8)
        self._sent: dist.Work | None = None

    def tell(self, yes: bool) -> bool:
        """Say yes or no, once per step; the answer is whether any rank said yes the last time."""
        if world() == 1:
            return yes
        heard = False
        if self._sent is not None:
            self._sent.wait()
            heard = bool(self._flag)
        self._flag.fill_(yes)
        self._sent = dist.all_reduce(self._flag, dist.ReduceOp.MAX, async_op=True)
        return heard

    def close(self) -> None:
        """The last word is waited for, so that no other message overtakes it."""
        if self._sent is not None:
            self._sent.wait()
            self._sent = None
