"""The contrastive loss of K views, forward and backward: ecpp, a loop over pairs, and the arithmetic limit.

    python benchmarks/objective.py
    python benchmarks/objective.py --tiles    ecpp alone, by the rows of a tile
    python benchmarks/objective.py --tau 0.1

fp32, D = 256, two threads, tau = 0.2 unless it is given; full graph. "loop" adds up lightly's NTXentLoss over the
K(K-1)/2 pairs and calls backward once. "limit" is the matrix products that cannot be avoided, alone: half of the
similarities, and one product of a K·N × K·N matrix with the embeddings. Times are medians of 7 after 2 to warm up, the
three taking turns in one process. Memory is what one forward and backward adds to the peak of a fresh process
(ru_maxrss).
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from unittest import mock

import torch

D, THREADS, REPEATS, WARM = 256, 2, 7, 2
CELLS = [(k, n) for n in (64, 256, 1024) for k in (2, 4, 8)]


def ecpp(z, tau):
    from ecpp.objective import contrastive

    def step():
        z.grad = None
        contrastive(z, tau=tau).backward()

    return step


def loop(z, tau):
    from lightly.loss import NTXentLoss

    loss = NTXentLoss(temperature=tau)

    def step():
        z.grad = None
        views = z.unbind()
        sum(loss(a, b) for i, a in enumerate(views) for b in views[i + 1 :]).backward()

    return step


def limit(z, tau):
    k, n, _ = z.shape
    flat = z.detach().flatten(0, 1)
    rows = max(n, min(k * n, 1024))
    strip = torch.rand(rows, k * n)

    def step():
        for i in range(0, k * n, n):  # one view against itself and the later ones
            torch.mm(flat[i : i + n], flat[i:].T, out=strip.view(-1)[: n * (k * n - i)].view(n, -1))
        for _ in range(0, k * n, rows):
            torch.mm(strip, flat)

    return step


STEPS = {"ecpp": ecpp, "loop": loop, "limit": limit}


def embeddings(k, n):
    return torch.randn(k, n, D, generator=torch.Generator().manual_seed(0)).requires_grad_()


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB on Linux


def memory(name, k, n, tau):
    STEPS[name](embeddings(2, 8), tau)()  # what the libraries themselves load is not the loss
    step = STEPS[name](embeddings(k, n), tau)
    before = peak()
    step()
    return peak() - before


def times(k, n, tau):
    """Median milliseconds of each, taking turns."""
    steps = {name: make(embeddings(k, n), tau) for name, make in STEPS.items()}
    inner = {}
    for name, step in steps.items():
        for _ in range(WARM):
            start = time.perf_counter()
            step()
        inner[name] = max(1, round(0.02 / (time.perf_counter() - start)))  # at least about 20 ms a turn
    taken = {name: [] for name in steps}
    for _ in range(REPEATS):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(inner[name]):
                step()
            taken[name].append((time.perf_counter() - start) / inner[name] * 1e3)
    return {name: statistics.median(t) for name, t in taken.items()}


def fresh(*words):
    """This file in a process of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def table(tau):
    print(
        "| K | N | ecpp | loop | limit | loop / ecpp | ecpp / limit | ecpp adds | loop adds | ecpp / loop |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for k, n in CELLS:
        ms = fresh("--times", k, n, "--tau", tau)
        mib = {name: fresh("--memory", name, k, n, "--tau", tau) for name in ("ecpp", "loop")}
        print(
            f"| {k} | {n} | {ms['ecpp']:.2f} ms | {ms['loop']:.2f} ms | {ms['limit']:.2f} ms "
            f"| **{ms['loop'] / ms['ecpp']:.1f}** | {ms['ecpp'] / ms['limit']:.2f} "
            f"| {mib['ecpp']:.1f} MiB | {mib['loop']:.1f} MiB | {mib['ecpp'] / mib['loop']:.1%} |",
            flush=True,
        )


def tiles(tau):
    """Median milliseconds by the rows of a tile: so many rows or fewer are one tile, computed at once."""
    from ecpp.objective import similarity

    sides = (128, 256, 512, 1024)
    print("| K | N | " + " | ".join(f"{side} rows" for side in sides) + " |")
    print("|---" * (2 + len(sides)) + "|")
    for k, n in ((8, 64), (8, 128), (4, 256), (8, 256), (16, 256), (4, 1024), (8, 1024)):
        taken = {side: [] for side in sides}
        step = ecpp(embeddings(k, n), tau)
        for _ in range(WARM + REPEATS):
            for side, t in taken.items():
                with mock.patch.object(similarity, "tile", return_value=side):
                    start = time.perf_counter()
                    step()
                    t.append((time.perf_counter() - start) * 1e3)
        medians = [statistics.median(t[WARM:]) for t in taken.values()]
        print(f"| {k} | {n} | " + " | ".join(f"{t:.2f} ms" for t in medians) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", nargs=2, type=int, metavar=("K", "N"), help="one cell, as JSON")
    parser.add_argument("--memory", nargs=3, metavar=("NAME", "K", "N"), help="one of a cell's, as JSON")
    parser.add_argument("--tiles", action="store_true", help="time ecpp by the size of its tiles")
    parser.add_argument("--tau", type=float, default=0.2, help="below 0.2 ecpp computes in float64")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    if args.times:
        print(json.dumps(times(*args.times, args.tau)))
    elif args.memory:
        name, k, n = args.memory
        print(json.dumps(memory(name, int(k), int(n), args.tau)))
    elif args.tiles:
        tiles(args.tau)
    else:
        table(args.tau)


if __name__ == "__main__":
    main()
