"""How fast views are made: ecpp beside torchvision, kornia and lightly, on the same images, in one run.

    python benchmarks/views.py [--size 32|224] [--k 2 4 6 8] [--cores 1 2] [--quick]

Every table is one fresh process with its number of threads, in which all rows take turns; a figure is the median of
five turns. 32 px: uint8 images in memory. 224/96 px: from the bytes of JPEGs of 500×375 pixels. On one core, times are
processor time, so that a busy neighbour does not count. On two cores they are wall time: what works image by image
shares the images among two processes, what works on batches has two threads; from JPEGs all have two processes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from multiprocessing.pool import Pool

import torch
from views_ecpp import jpegs, make_ecpp, photographs, show_stages
from views_peers import PEERS

from ecpp.views import CIFAR, View, ViewPlan, compiled, plan

BATCHED = ("ecpp", "ecpp compiled", "kornia (batched)")
N = {32: 256, 224: 32}


def candidates(p, size):
    rows = {"ecpp": make_ecpp(p)}
    if compiled.available() is None:
        rows["ecpp compiled"] = make_ecpp(p, "compiled")
    if size > 64:
        rows["ecpp, scaled decoding"] = make_ecpp(p, scaled=True)
        if compiled.available() is None:
            rows["ecpp compiled, scaled decoding"] = make_ecpp(p, "compiled", scaled=True)
    return rows | {name: peer(p) for name, peer in PEERS.items()}


def plans(size, ks):
    if size > 64:
        return {f"K={k}": plan(k, large=224, small=96) for k in ks}
    kinds = {"SimCLR views only": View(32, colour=CIFAR.colour), "crop-only views only": View(32, flip_p=0)}
    same = {f"{name}, K=4": ViewPlan((view,) * 4, CIFAR.mean, CIFAR.std) for name, view in kinds.items()}
    return same | {f"K={k}": plan(k, large=32) for k in ks}


_WORK = {}  # of a process on a second core


def _start(size, ks, n):
    torch.set_num_threads(1)
    images = jpegs(n) if size > 64 else photographs(n, 32, 32)
    half = int(torch.multiprocessing.current_process()._identity[0]) % 2  # any half: they cost the same
    _WORK["images"] = images[half::2]
    _WORK["rows"] = {name: candidates(p, size) for name, p in plans(size, ks).items()}


def _half(key):
    name, row = key
    _WORK["rows"][name][row](_WORK["images"])


def measure(size, ks, cores, n, turns):
    """{plan: {row: seconds per image}} for every plan and row, the rows taking turns."""
    images = jpegs(n) if size > 64 else photographs(n, 32, 32)
    pool = Pool(2, _start, (size, ks, n)) if cores == 2 else None
    table, busy = {}, []
    clock = time.process_time if pool is None else time.perf_counter
    for name, p in plans(size, ks).items():
        rows = candidates(p, size)
        times = {row: [] for row in rows}
        for turn in range(turns + 1):  # the first warms up
            for row, run in rows.items():
                start, wall = clock(), time.perf_counter()
                if pool is None or (size <= 64 and row in BATCHED):
                    run(images)
                else:
                    pool.map(_half, [(name, row)] * 2, chunksize=1)
                took, wall = clock() - start, time.perf_counter() - wall
                if turn:
                    times[row].append(took / n)
                    busy.append(wall / took)
        table[name] = {row: statistics.median(t) for row, t in times.items()}
    if pool is None:
        print(
            f"\n(wall time over processor time: {statistics.median(busy):.2f}; 1 on a machine with nothing else to do)"
        )
    if pool:
        pool.terminate()
    return table


def show(table, size, ks, cores):
    for name, p in plans(size, ks).items():
        rows = table[name]
        theirs = {row: rows[row] for row in PEERS}
        print(f"\n### {'32' if size <= 64 else '224/96'} px, {name}, {cores} core{'s' * (cores > 1)}\n")
        print(
            "| | ms per image | views/s | " + " | ".join(f"× {row.split(' (')[0]}" for row in theirs) + " |"
        )
        print("|---|---|---|" + "---|" * len(theirs))
        for row, seconds in rows.items():
            ratios = " | ".join(f"{other / seconds:.1f}" for other in theirs.values())
            print(f"| {row} | {seconds * 1e3:.3f} | {p.k / seconds:,.0f} | {ratios} |")
    print(f"\nCost over K, {cores} core{'s' * (cores > 1)} (µs per thousand pixels of views)\n")
    print("| | " + " | ".join(f"K={k}" for k in ks) + " |\n|---|" + "---|" * len(ks))
    for row in table[f"K={ks[0]}"]:
        costs = (
            table[name][row] * 1e9 / p.pixels_per_image
            for name, p in plans(size, ks).items()
            if name[:2] == "K="
        )
        print(f"| {row} | " + " | ".join(f"{cost:.1f}" for cost in costs) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, choices=(32, 224), nargs="+", default=[32, 224])
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4, 6, 8])
    parser.add_argument("--cores", type=int, choices=(1, 2), nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="K=6 alone, few images, three turns")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.quick:
        a.k = [6]
    if not a.child:
        for size in a.size:
            for cores in a.cores:
                threads = {name: str(cores) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
                words = ["--child", "--size", size, "--cores", cores, "--k", *a.k, *["--quick"] * a.quick]
                command = [sys.executable, __file__, *map(str, words)]
                subprocess.run(command, env=os.environ | threads, check=True)
        return
    size, cores = a.size[0], a.cores[0]
    n, turns = (N[size] // 4, 3) if a.quick else (N[size], 5)
    torch.set_num_threads(cores)
    show(measure(size, a.k, cores, n, turns), size, a.k, cores)
    if cores == 1:
        show_stages(size, 6 if 6 in a.k else a.k[-1], n, turns)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
