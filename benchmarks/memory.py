"""Memory of the path of the workers: over ten epochs, and for each number of workers.

python benchmarks/memory.py FOLDER [--epochs 10] [--workers 0 1 2 4]

FOLDER holds photographs. The stream is read as training reads it, without an encoder: four views, two of 224 and two of
96 px, 32 images a batch. What is printed is the proportional set size of all its processes (Linux), where memory that
processes share counts once, and the number of workers is told apart in fresh processes.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

from ecpp.data import Stream, open_source
from ecpp.views import plan


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--one", action="store_true", help="this process measures")
    options = parser.parse_args()
    if options.one:
        print(*(f"{mib:.0f}" for mib in measure(options.folder, options.epochs, options.workers[0])))
        return
    first = None
    for workers in options.workers:
        words = [options.folder, "--one", "--epochs", str(options.epochs), "--workers", str(workers)]
        done = subprocess.run(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True
        )
        sizes = list(map(int, done.stdout.split()))
        first = sizes if first is None else first
        each = (
            f", {(sizes[-1] - first[-1]) / workers:.0f} MiB a worker"
            if workers and first is not sizes
            else ""
        )
        print(f"{workers} workers: MiB in each epoch {' '.join(map(str, sizes))}{each}", flush=True)


def measure(folder: str, epochs: int, workers: int) -> list[float]:
    """The most MiB of all processes, seen at the batches of each epoch."""
    torch.set_num_threads(1)
    stream = Stream(
        open_source(folder).train, plan(4, large=224, small=96), batch_size=32, seed=0, workers=workers
    )
    steps = stream.steps_per_epoch
    most = [0.0] * epochs
    for step, _ in enumerate(stream.batches(0, epochs * steps)):
        most[step // steps] = max(most[step // steps], sum(map(proportional, family(os.getpid()))))
    return most


def family(process: int) -> list[int]:
    """A process and all below it."""
    below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(p for child in below for p in family(int(child)))]


def proportional(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
