"""What this machine can do, measured and proven on it."""

import os
import platform
import socket
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from torch import Tensor

from ecpp import distributed
from ecpp.data import Stream, open_source
from ecpp.method import METHODS
from ecpp.model import create_encoder
from ecpp.model.norm import synchronise
from ecpp.run.resolve import precision_on, usable_device
from ecpp.views import ViewBatch, plan

_PACKAGES = ("ecpp", "torch", "torchvision", "timm", "numpy", "tensorboard", "wandb", "datasets")
_IMAGES, _STEPS, _BOUND = 8, 3, 1e-9
_BOUND_ON_GPUS = 1e-7  # cuDNN and NCCL add in other orders, and not all of it in float64


def examine(source: str | None) -> None:
    """Print versions, devices, precision, loading speed and the proof of equality; a failed proof is an error."""
    console = Console(highlight=False, soft_wrap=True)
    for name, value in _facts().items():
        console.print(f"{name:<12} {value}")
    if source is not None:
        console.print(f"{'loading':<12} {_loading(source)}")
    errors = equality("cpu")
    console.print(f"{'equality':<12} two processes against one, on CPUs: {_worst(errors)}")
    _judge(errors, _BOUND)
    if torch.cuda.device_count() > 1:
        errors = equality("cuda")
        console.print(f"{'':<12} and on two GPUs: {_worst(errors)}")
        _judge(errors, _BOUND_ON_GPUS)
    elif torch.cuda.is_available():
        console.print(f"{'':<12} on GPUs it needs two of them, and there is one")


def _facts() -> dict[str, str]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    device = usable_device(None)
    return {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "packages": ", ".join(f"{p} {v}" for p in _PACKAGES if (v := _version(p))),
        "cores": f"{os.cpu_count()}, PyTorch uses {torch.get_num_threads()} threads",
        "devices": ", ".join(["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]),
        "precision": f"auto is {precision_on(device)} on {device}",
        "backends": ", ".join(
            name for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available())) if there
        ),
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _loading(source: str) -> str:
    """Images per second from the source to views, by one process less than there are cores."""
    images = open_source(source).train
    size = min(64, len(images))
    workers = min(8, (os.cpu_count() or 1) - 1)
    stream = Stream(images, plan(2, large=224 if images.in_memory() is None else 32), batch_size=size,
                    seed=0, workers=workers)  # fmt: skip
    steps = min(8, stream.steps_per_epoch)
    started, seen = time.perf_counter(), 0
    for batch in stream.batches(0, steps):
        seen += batch.n
    return (
        f"{seen / (time.perf_counter() - started):,.0f} images/s of {source}, 2 views each, {workers} workers"
    )


def _worst(errors: dict[str, float]) -> str:
    name = max(errors, key=errors.__getitem__)
    return f"{len(errors)} methods, worst relative difference {errors[name]:.1e} ({name})"


def _judge(errors: dict[str, float], most: float) -> None:
    bad = [f"{name} {e:.1e}" for name, e in errors.items() if not e < most]
    if bad:
        raise ValueError(
            f"two processes do not train as one here (above {most:g}: {', '.join(bad)}): "
            "do not train on several processes with these versions"
        )


def equality(device: str) -> dict[str, float]:
    """For each method the largest relative difference of losses and weights after three steps in float64."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {name: steps(name, device) for name in METHODS}
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_on_a_rank, (port, device, folder), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
        ranks = [torch.load(Path(folder) / str(rank), weights_only=True) for rank in range(2)]
    return {
        name: max(_difference(alone[name], theirs[name]) for theirs in ranks) for name in METHODS
    }  # fmt: skip


def _difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[k] - other[k]).norm() / one[k].norm().clamp_min(1e-4)) for k in one)


def _on_a_rank(rank: int, port: int, device: str, folder: str) -> None:
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        torch.save({name: steps(name, device) for name in METHODS}, Path(folder) / str(rank))
        distributed.barrier()
    finally:
        dist.destroy_process_group()


def steps(name: str, device: str) -> dict[str, Tensor]:
    """Losses, weights and statistics of a few steps of a small net, on this rank's share of fixed views."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder: Any = create_encoder("resnet10", size=16, width=4)
    kind = METHODS[name].load()
    method = kind(encoder, **kind.heads(encoder.num_features, 4, 2)).double().to(device)
    synchronise(method)
    module = distributed.wrap(method)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    losses = []
    for step in range(_STEPS):
        loss = module(_views(step, device), diagnose=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step((step + 1) / _STEPS)
        losses.append(distributed.mean(loss.detach()).cpu())
    return {"losses": torch.stack(losses)} | {
        k: v.cpu() for k, v in method.state_dict().items() if v.is_floating_point()
    }


def _views(step: int, device: str) -> ViewBatch:
    g = torch.Generator().manual_seed(step)
    images = torch.randn(3, _IMAGES, 3, 16, 16, generator=g, dtype=torch.float64)
    share = _IMAGES // distributed.world()
    mine = slice(distributed.rank() * share, (distributed.rank() + 1) * share)
    return ViewBatch((images[:, mine].flatten(0, 1).to(device),), ((0, 1, 2),), torch.arange(_IMAGES)[mine])
