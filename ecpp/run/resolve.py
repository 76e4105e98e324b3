"""The choices of a config that depend on the data or the machine: made here, once."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from ecpp.config import Config
from ecpp.data import Images
from ecpp.train.optim import default_lr, default_warmup
from ecpp.views import plan
from ecpp.views.plan import SMALL_IMAGE


def absolute(config: Config) -> Config:
    """The config with the folders it names written in full, so that a run can go on from anywhere."""

    def full(source: str) -> str:
        path = Path(os.path.expanduser(source))
        return str(path.resolve()) if path.is_dir() else source

    return replace(config, source=full(config.source), val=config.val and full(config.val))


def resolve(config: Config, images: Images) -> Config:
    """Every None replaced by what the images, the machine or the paper's rules say."""
    config = resolve_views(config, config.large or _natural_size(images))
    device = usable_device(config.device)
    cores = os.cpu_count() or 1
    if (config.threads or 1) > 4 * cores:
        raise ValueError(
            f"--threads {config.threads} is far more than the {cores} cores here: take at most {cores}"
        )
    return replace(
        config,
        projector_layers=config.projector_layers or (2 if (config.large or 0) <= SMALL_IMAGE else 3),
        precision=precision_on(device) if config.precision == "auto" else config.precision,
        device=device,
        threads=config.threads or torch.get_num_threads(),
        workers=min(8, cores - 1) if config.workers is None else config.workers,
    )


def resolve_views(config: Config, large: int) -> Config:
    """The choices that follow from the size of the large views and from the other options alone."""
    view_plan = plan(config.views, large=large, n_simclr=config.n_simclr)
    constant = config.schedule == "constant"
    warmup = 0.0 if constant else default_warmup(config.epochs)
    return replace(
        config,
        large=large,
        small=config.small or (large if large < 192 else 96),
        n_simclr=sum(v.colour is not None for v in view_plan.views),
        look=config.look or ("cifar" if large <= SMALL_IMAGE else "imagenet"),
        lr=config.lr or default_lr(config.optimizer, config.batch_size),
        warmup=warmup if config.warmup is None else config.warmup,
    )


def _natural_size(images: Images) -> int:
    """The side of small images, from a few of them; 224 for all others."""
    step = max(1, len(images) // 8)
    side = max(max(images.read(i).shape[1:]) for i in range(0, len(images), step))
    return side if side <= SMALL_IMAGE else 224


def usable_device(name: str | None) -> str:
    """The device of that name, or the best there is; one that is not here is an error."""
    if name is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        if torch.device(name).type not in ("cpu", "cuda", "mps", "xpu"):
            raise RuntimeError("it computes nothing")
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).split("\n")[0][:160]
        raise ValueError(
            f"the device {name!r} cannot be used here ({reason}): --device cpu always can"
        ) from e
    return name


def precision_on(name: str) -> Literal["bf16", "fp32"]:
    """bf16 where the hardware computes in it; elsewhere it would be slower than fp32."""
    device = torch.device(name)
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        native = bool(able.get("amx_bf16") or able.get("avx512_bf16"))
    else:
        native = False
    return "bf16" if native else "fp32"
