"""Linear accuracy at the end of every kept epoch, by the offline protocol, against four measures of cost."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ecpp import distributed
from ecpp.evaluate import FROZEN, FeatureCache
from ecpp.evaluate.cache import hash_weights
from ecpp.run.bench import open_bench
from ecpp.run.folder import RunFolder, write_json
from ecpp.run.judge import linear_protocol
from ecpp.run.protocols import FLOOR
from ecpp.run.resolve import usable_device
from ecpp.run.weights import load

AXES = ("step", "pairs", "view_passes", "seconds")  # beside the epoch itself; logged while training


def curve_of_run(
    run: Path,
    source: str | None = None,
    *,
    val: str | None = None,
    limit: int | None = None,
    workers: int | None = None,
    momentum: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Judge every encoder in RUN/epochs by `linear`, a fresh layer each, and write RUN/curve.json.

    Epochs whose weights are the same as when they were last judged on the same data are not judged again.
    """
    device = usable_device(None)
    with distributed.start(device):
        folder = RunFolder(run)
        config = folder.resolved()
        torch.set_num_threads(config.threads or 1)
        costs = {r["epoch"]: {k: r[k] for k in AXES} for r in folder.records() if r.get("kind") == "epoch"}
        kept = [epoch for epoch in sorted(costs) if folder.epoch(epoch).exists()]
        if not kept:
            raise ValueError(
                f"{run} kept no encoder of an epoch: a curve needs `ecpp pretrain … --keep-epochs` from the start"
            )
        bench = open_bench(
            config,
            source,
            val,
            limit,
            device=device,
            workers=(config.workers or 0) if workers is None else workers,
            cache=FeatureCache(None),  # every encoder is asked once
        )
        protocol = linear_protocol(config, momentum)

        def top1_of(net: torch.nn.Module) -> float:
            found = FROZEN["linear"](bench.ask(net).sides, protocol, seed=config.seed, bf16=False)
            return float(found.score.top1)

        head = {
            "protocol": "linear",
            "details": protocol.describe(),
            "source": bench.source,
            "val": bench.val,
            "labels": len(bench.train),
            "tested": len(bench.test),
            "floor_is": FLOOR,
        }
        before = _earlier(folder, head)
        floor = before.get("floor")
        if floor is None:
            floor = top1_of(bench.calibrate(bench.untrained()))
        curve: dict[str, Any] = {**head, "floor": floor, "points": []}
        known = {p["weights"]: p["top1"] for p in before.get("points", [])}
        for epoch in kept:
            started = time.perf_counter()
            encoder = load(run, epoch=epoch)
            weights = hash_weights(encoder)
            top1 = known[weights] if weights in known else top1_of(encoder)
            curve["points"].append({"epoch": epoch, **costs[epoch], "top1": top1, "weights": weights})
            if distributed.is_main():
                write_json(folder.curve, curve)
                say(f"epoch {epoch}: linear {top1:.1%}, {time.perf_counter() - started:.0f} s")
        return curve


def _earlier(folder: RunFolder, head: dict[str, Any]) -> dict[str, Any]:
    """The curve that is there, if it is of the same data and protocol."""
    try:
        there = json.loads(folder.curve.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    same = isinstance(there, dict) and all(there.get(k) == v for k, v in head.items())
    return there if same else {}
