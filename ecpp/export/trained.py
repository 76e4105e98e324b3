"""What is exported: a trained encoder, how timm builds it, and what a stranger must know of it."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ecpp.evaluate import Preprocess
from ecpp.evaluate.cache import hash_weights
from ecpp.model import Entry, timm_entry
from ecpp.run import Epoch, RunFolder, about, build, load
from ecpp.train import load_checkpoint

# What is told of a measurement; the rest of it names folders.
_MEASURED = (
    "protocol",
    "top1",
    "top5",
    "floor",
    "floor_is",
    "labels",
    "tested",
    "details",
    "seeds",
    "seconds",
)


@dataclass(frozen=True)
class Trained:
    """An encoder in eval mode on the CPU, with fp32 weights."""

    encoder: nn.Module
    entry: Entry
    preprocess: Preprocess
    sizes: tuple[int, ...]  # the sides of its views, largest first
    channels: int
    about: dict[str, Any]

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        arguments = {k: v for k, v in self.entry.arguments.items() if k not in ("num_classes", "in_chans")}
        shown = [f"{k}={v}" for k, v in arguments.items()] + [f"{self.channels} channels"]
        return f"{self.entry.name} ({', '.join(shown)})"

    def inputs(self, count: int, size: int) -> Tensor:
        """The fixed images on which an export is compared with the run."""
        g = torch.Generator().manual_seed(size)
        return torch.randn(count, self.channels, size, size, generator=g)

    def data_config(self) -> dict[str, Any]:
        """The preprocessing, in timm's words."""
        size = self.preprocess.size
        whole = size <= 64
        return {
            "input_size": (self.channels, size, size),
            "mean": self.preprocess.mean,
            "std": self.preprocess.std,
            "interpolation": "bilinear",
            "crop_pct": 1.0 if whole else _share(size),
            "crop_mode": "squash" if whole else "center",
        }

    def metadata(self) -> str:
        """What stands in every exported file, as JSON."""
        entry = {"name": self.entry.name, "arguments": self.entry.arguments}
        return json.dumps({"timm": entry, "preprocess": self.data_config(), "run": self.about})


def _share(size: int) -> float:
    """The share of the shorter side that the centre takes, such that timm's floor(size / share) is that side."""
    short = round(size * 256 / 224)
    share = size / short
    while math.floor(size / share) < short:
        share = math.nextafter(share, 0)
    return share


def trained(run: Path, epoch: Epoch = None) -> Trained:
    """The encoder of a run, as it is exported."""
    folder = RunFolder(run)
    config = folder.resolved()
    encoder = load(run, epoch=epoch)
    weights = hash_weights(encoder)
    encoder = encoder.float()
    encoder = encoder.to(memory_format=torch.contiguous_format)
    with torch.random.fork_rng(devices=[]):
        entry = timm_entry(
            config.encoder, size=config.large or 0, width=config.width, channels=config.channels
        )
    return Trained(
        encoder=encoder.eval().requires_grad_(False),
        entry=entry,
        preprocess=build.build_preprocess(config),
        sizes=tuple(sorted({v.size for v in build.build_plan(config).views}, reverse=True)),
        channels=config.channels,
        about=_about(folder, epoch, weights),
    )


def _about(folder: RunFolder, epoch: Epoch, weights: str) -> dict[str, Any]:
    """Data, method, epochs and evaluation of a run. Of a folder of images the name alone: paths are private."""
    config, read = folder.resolved(), folder.read()
    images = read.get("images", {}).get("count")
    per_epoch = (images or 0) // config.batch_size
    if isinstance(epoch, int):  # the encoder alone was kept
        step = epoch * per_epoch
    else:
        step = int(load_checkpoint(folder.weights(epoch)).get("step", 0))
    return {
        "ecpp": read.get("environment", {}).get("ecpp"),
        "data": _public(config.source),
        "images": images,
        "method": about.name_of(config),
        "K": config.views,
        "encoder": config.encoder,
        "epoch": epoch,
        "epochs": config.epochs,
        "epochs_done": step // per_epoch if per_epoch else None,
        "steps": step,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "evaluation": _evaluation(folder.evaluation(epoch), weights),
    }


def _public(source: str) -> str:
    kind = "hf:" if source.startswith("hf:") else ""
    path = Path(source.removeprefix(kind))
    return f"{kind}{path.name}" if path.is_absolute() else source


def _evaluation(file: Path, weights: str) -> list[dict[str, Any]]:
    """Every number that was measured of these weights, each with its protocol."""
    if not file.exists():
        return []
    evaluation = json.loads(file.read_text())
    if evaluation.get("weights", weights) != weights:  # training went on since
        return []
    source = _public(str(evaluation.get("source", "")))
    results = evaluation.get("results", ())
    return [{"data": source} | {k: r[k] for k in _MEASURED if k in r} for r in results]
