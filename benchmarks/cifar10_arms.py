"""ECPP×6 against two-view SimCLR on 10,000 CIFAR-10 images: linear accuracy over seeds, each arm at its best lr.

    python benchmarks/cifar10_arms.py CIFAR10 --out runs/arms --jobs 2

CIFAR10 is a folder with train/ and test/ class folders. Every arm is tried at every learning rate of one
grid with seed 0; the best goes on with seeds 1 and 2. The probe learns from all
50,000 training labels and is counted on the 10,000 test images. Stopped, it goes on where it was.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

GRID = (0.03, 0.1, 0.3)
TUNING_SEED, SEEDS = 0, (0, 1, 2)
COMMON = ["--limit", "10000", "--encoder", "resnet10", "--width", "16", "--batch-size", "64", "--large", "32"]
ECPP = ["--views", "6", "--small", "20"]
TWO = ["--views", "2", "--loss", "vanilla"]
ARMS = {
    "ECPP×6, 7 epochs": [*ECPP, "--epochs", "7"],
    "SimCLR×2, equal epochs (7)": [*TWO, "--epochs", "7"],
    "SimCLR×2, equal number of views (21)": [*TWO, "--epochs", "21"],
    "SimCLR×2, equal compute (12)": [*TWO, "--epochs", "12"],  # in passes of a large view, 7·3.5625 = 2·12.5
}


def ecpp(*words):
    done = subprocess.run([sys.executable, "-m", "ecpp", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ecpp {' '.join(map(str, words))} failed:\n{done.stderr[-2000:]}")


def job(source, out, arm, lr, seed, threads):
    """Train and judge one run, unless that was done before; returns what the table needs."""
    run = out / f"{list(ARMS).index(arm)}-lr{lr}-seed{seed}"
    if not (run / "evaluation.json").exists():
        ecpp("pretrain", source, "--out", run, *COMMON, *ARMS[arm], "--lr", lr, "--seed", seed, *threads)
        ecpp("evaluate", run, source)
    results = {r["protocol"]: r for r in json.loads((run / "evaluation.json").read_text())["results"]}
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        "linear": results["linear"]["top1"],
        "floor": results["linear"]["floor"],
        "knn": results["knn"]["top1"],
        "seconds": last["seconds"],
        "view_passes": last["view_passes"],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    parser.add_argument(
        "--jobs", type=int, default=2, help="runs side by side, one thread each (1: all threads)"
    )
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    threads = ("--threads", 1) if a.jobs > 1 else ()
    with ThreadPoolExecutor(a.jobs) as pool:

        def start(arm, lr, seed):
            return pool.submit(job, a.source, a.out, arm, lr, seed, threads)

        tuned = {arm: {lr: start(arm, lr, TUNING_SEED) for lr in GRID} for arm in ARMS}
        best, runs = {}, {}
        for arm, tries in tuned.items():
            scores = {lr: f.result()["linear"] for lr, f in tries.items()}
            best[arm] = max(scores, key=scores.get)
            runs[arm] = [start(arm, best[arm], seed) for seed in SEEDS]
            print(f"{arm}: " + ", ".join(f"lr {lr} {s:.2%}" for lr, s in scores.items()), flush=True)
        print("\n| arm | lr | linear, mean ± sd | kNN | random encoder | view passes | training, s |")
        print("|---|---|---|---|---|---|---|")
        for arm, futures in runs.items():
            rows = [f.result() for f in futures]
            mean, sd = (
                [f(r[k] for r in rows) for k in ("linear", "knn", "floor")]
                for f in (statistics.mean, statistics.stdev)
            )
            seconds = statistics.mean(r["seconds"] for r in rows)
            print(
                f"| {arm} | {best[arm]} | {mean[0]:.2%} ± {sd[0]:.2%} | {mean[1]:.2%} ± {sd[1]:.2%} | {mean[2]:.2%} "
                f"| {rows[0]['view_passes']:,} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
