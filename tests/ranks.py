"""Functions run on several processes that form a group; the tracebacks of the processes come back."""

import os
import socket
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(world, function, *arguments):
    """`function(*arguments)` on each of `world` processes over Gloo; their results, in the order of the ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as out:
        mp.spawn(_enter, (world, port, function, arguments, out), nprocs=world)
        return [torch.load(f"{out}/{rank}") for rank in range(world)]


def _enter(rank, world, port, function, arguments, out):
    torch.set_num_threads(1)
    if os.path.exists("/sys/class/net/lo"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    try:
        torch.save(function(*arguments), f"{out}/{rank}")
        dist.barrier()
    finally:
        dist.destroy_process_group()
