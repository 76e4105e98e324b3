"""Every method × K on 10,000 CIFAR-10 images, and SimSiam without stop-gradient: a linear probe against its floor.

    python benchmarks/methods.py CIFAR10 --out runs/methods --jobs 2

CIFAR10 is a folder with train/ and test/ class folders. Pretraining sees 10,000 of the training images without
labels; the probe learns from the same number of labelled ones and is counted on the 10,000 test images. A method has
one learning rate, its default, for every K and seed. What is done is kept in OUT/results.jsonl, so that a stopped table
goes on; it is printed as Markdown in the end.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ecpp.method import METHODS

LIMIT = ["--limit", "10000"]
COMMON = ["--encoder", "resnet10", "--width", "16", "--large", "32", "--batch-size", "64", *LIMIT]
COLLAPSE = "simsiam-collapse"  # without stop-gradient


def ecpp(*words):
    done = subprocess.run([sys.executable, "-m", "ecpp", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ecpp {' '.join(map(str, words))} failed:\n{done.stderr[-2000:]}")


def run(a, arm, views, seed):
    """Train and judge one run; what the table needs of it."""
    folder = a.out / f"{arm}-{views}-{a.epochs}epochs-seed{seed}"
    method = ["--method", "simsiam", "--no-stop-gradient"] if arm == COLLAPSE else ["--method", arm]
    small = ["--small", "20"] if views > 2 else []
    threads = ["--threads", "1"] if a.jobs > 1 else []
    plan = ["--views", views, *small, "--epochs", a.epochs, "--seed", seed, *threads]
    ecpp("pretrain", a.source / "train", "--out", folder, *method, *COMMON, *plan)
    ecpp("evaluate", folder, a.source, *LIMIT)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    step = [line for line in lines if line["kind"] == "step"][-1]
    results = {r["protocol"]: r for r in json.loads((folder / "evaluation.json").read_text())["results"]}
    return {
        "arm": arm,
        "views": views,
        "seed": seed,
        "epochs": a.epochs,
        "linear": results["linear"]["top1"],
        "floor": results["linear"]["floor"],
        "knn": results["knn"]["top1"],
        "embedding_std": step["embedding_std"],
        "seconds": step["seconds"],
        "view_passes": step["view_passes"],
        "lr": json.loads((folder / "run.json").read_text())["resolved"]["lr"],
    }


def table(rows):
    """One line per method and K; ± is the standard deviation over seeds."""
    print(
        "| method | K | lr | linear | random encoder | least gain | kNN | spread | view passes | training |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    groups = {}
    for row in sorted(rows, key=lambda r: (arms().index(r["arm"]), r["views"], r["seed"])):
        groups.setdefault((row["arm"], row["views"]), []).append(row)
    for (arm, views), seeds in groups.items():
        name = "SimSiam without stop-gradient" if arm == COLLAPSE else METHODS[arm].title

        def spread(key, seeds=seeds):
            values = [100 * r[key] for r in seeds]
            sd = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            return f"{statistics.mean(values):.1f}{sd} %"

        gain = min(r["linear"] - r["floor"] for r in seeds)
        std, seconds = (statistics.mean(r[k] for r in seeds) for k in ("embedding_std", "seconds"))
        print(
            f"| {name} | {views} | {seeds[0]['lr']:g} | {spread('linear')} | {spread('floor')} | {100 * gain:+.1f} "
            f"| {spread('knn')} | {std:.2f} | {seeds[0]['view_passes']:,} | {seconds:.0f} s |"
        )


def arms():
    return [*METHODS, COLLAPSE]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--methods", nargs="+", choices=arms(), default=arms(), metavar="METHOD")
    parser.add_argument("--views", nargs="+", type=int, default=[2, 4, 6])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=2, help="runs side by side, one thread each (1: all threads)"
    )
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    kept = a.out / "results.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    rows = [r for r in rows if r["epochs"] == a.epochs]
    done = {(r["arm"], r["views"], r["seed"]) for r in rows}
    # The collapse is shown at one K with one seed. Seed by seed, so that a stopped table is whole.
    asked = [
        (m, k, s)
        for s in a.seeds
        for m in a.methods
        for k in a.views
        if m != COLLAPSE or (k == max(a.views, key=lambda v: (v == 4, v)) and s == a.seeds[0])
    ]
    with ThreadPoolExecutor(a.jobs) as pool:
        for row in pool.map(lambda job: run(a, *job), [job for job in asked if job not in done]):
            rows.append(row)
            with open(kept, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{row['arm']}×{row['views']} seed {row['seed']}: {row['linear']:.1%}, floor {row['floor']:.1%}, "
                f"{row['seconds']:.0f} s",
                file=sys.stderr,
            )
    table([r for r in rows if (r["arm"], r["views"], r["seed"]) in asked])


if __name__ == "__main__":
    main()
