"""What run.json says of a run: its name, plan, images, machine and command."""

import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ecpp.config import Config
from ecpp.data import Images
from ecpp.method import METHODS
from ecpp.run.build import build_plan, pairs_per_image


def name_of(config: Config) -> str:
    """What a report calls a run: ECPP×K is SimCLR×K with K > 2 views, all pairs and the paper's loss."""
    if config.method != "simclr":
        return f"{METHODS[config.method].title}×{config.views}"
    is_ecpp = config.views > 2 and config.loss == "ecpp" and config.pairing == "full"
    return f"{'ECPP' if is_ecpp else 'SimCLR'}×{config.views}"


def describe_plan(config: Config) -> dict[str, Any]:
    """The plan as JSON."""
    view_plan = build_plan(config)
    return {
        "views": [{"size": v.size, "kind": v.kind} for v in view_plan.views],
        "pairs_per_image": pairs_per_image(config),
        "relative_compute": view_plan.relative_compute,
    }


def fingerprint(images: Images) -> dict[str, Any]:
    """What tells one set of images from another: their number and a hash of their names, in order."""
    names = hashlib.sha256()
    for i in range(len(images)):
        names.update(images.name(i).encode("utf-8", "surrogateescape") + b"\0")
    return {"count": len(images), "names": names.hexdigest()[:16]}


def environment(config: Config) -> dict[str, Any]:
    """What else a result may depend on."""
    return {
        "ecpp": version("ecpp"),
        "python": platform.python_version(),
        **{p: version(p) for p in ("torch", "torchvision", "timm")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "device": torch.cuda.get_device_name() if (config.device or "").startswith("cuda") else config.device,
        "threads": config.threads,
        "git": _git(),
    }


def _git() -> str | None:
    """The commit of the package's own checkout, if it is one."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def command_line() -> str:
    return " ".join(["ecpp", *sys.argv[1:]])
