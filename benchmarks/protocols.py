"""Every protocol's number for runs that differ in their seed alone, as a Markdown table.

    python benchmarks/protocols.py RUN... --source CIFAR10 [--epochs 5] [--only linear,knn] [--cpu]

Each run is judged by every protocol that its evaluation.json does not hold yet, and by linear and knn once more with
recalibrated BatchNorm; `--epochs` are those of linear-aug, finetune and supervised. With `--cpu` the seconds are
those that the processor worked, all threads together: what else runs on the machine counts little.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from ecpp.evaluate import cache
from ecpp.run import evaluate_run, protocols

BN = ("linear", "knn")


def mean(values, form):
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    return form(statistics.mean(known), statistics.stdev(known) if len(known) > 1 else 0.0)


def percent(value, sd):
    return f"{100 * value:.1f} ± {100 * sd:.1f} %"


def judge(run, source, epochs, names):
    """Evaluate what is missing, one protocol at a time, so that a stop loses little."""
    file = run / "evaluation.json"
    there = {r["protocol"] for r in json.loads(file.read_text())["results"]} if file.exists() else set()
    for name in names:
        bare = name.removesuffix("+bn")
        if name not in there:
            evaluate_run(
                run, source, protocols=[bare], epochs=epochs, recalibrate_bn=bare != name,
                say=lambda text: print(f"{run.name}: {text}", file=sys.stderr, flush=True),
            )  # fmt: skip
    return {r["protocol"]: r for r in json.loads(file.read_text())["results"]}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--source")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--only", help="protocols, with commas between them")
    parser.add_argument("--cpu", action="store_true")
    a = parser.parse_args()
    if a.cpu:
        clock = SimpleNamespace(perf_counter=time.process_time)
        protocols.time = cache.time = clock
    every = [*protocols.PROTOCOLS, *(f"{name}+bn" for name in BN)]
    names = a.only.split(",") if a.only else every
    found = [judge(run, a.source, a.epochs, names) for run in a.runs]
    print("| protocol | top-1 | best epoch by test | random encoder | labels | seconds |")
    print("|---|---|---|---|---|---|")
    for name in names:
        rows = [one[name] for one in found]
        best = mean([(r["best_by_test"] or {}).get("top1") for r in rows], percent)
        seconds = mean([r["seconds"] for r in rows], lambda value, sd: f"{value:.0f}")
        print(
            f"| `{name}` | {mean([r['top1'] for r in rows], percent)} | {best} "
            f"| {mean([r['floor'] for r in rows], percent)} | {rows[0]['labels']:,} | {seconds} |"
        )
    for name in names:
        print(f"\n`{name}`: {found[0][name]['details']}")


if __name__ == "__main__":
    main()
