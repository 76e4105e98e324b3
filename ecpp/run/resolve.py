"""The choices of a config that depend on the data or the machine: made here, once."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ecpp.config import Config
from ecpp.data import Images, Unreadable
from ecpp.method import METHODS
from ecpp.train.optim import default_lr, default_warmup
from ecpp.views import plan
from ecpp.views.plan import SMALL_IMAGE

STATISTICS_FROM = 1000  # images


def absolute(config: Config) -> Config:
    """The config with the files and folders it names written in full, so that a run can go on from anywhere."""

    def full(name: str | None) -> str | None:
        if not name:
            return name
        prefix = "hf:" if name.startswith("hf:") else ""
        path = Path(os.path.expanduser(name.removeprefix(prefix)))
        return f"{prefix}{path.resolve()}" if path.exists() else name

    source = full(config.source) or config.source
    init = full(config.init)
    return replace(config, source=source, val=full(config.val), classes=full(config.classes), init=init)


def resolve(config: Config, images: Images) -> Config:
    """Every None replaced by what the images, the machine or the paper's rules say."""
    config = resolve_views(config, config.large or _natural_size(images))
    device = usable_device(config.device)
    cores = _cores()
    check_threads(config.threads)
    mean, std = config.mean, config.std
    if config.channels != 3 and (mean is None or std is None):
        measured = channel_statistics(images, config.seed)
        mean, std = mean or measured[0], std or measured[1]
    return replace(
        config,
        mean=mean,
        std=std,
        precision=precision_on(device) if config.precision == "auto" else config.precision,
        device=device,
        threads=config.threads or torch.get_num_threads(),
        workers=min(8, cores - 1) if config.workers is None else config.workers,
    )


def _cores() -> int:
    """This process's share of the machine's."""
    return max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # torchrun's


def check_threads(threads: int | None) -> None:
    """Far more threads than there are cores are a mistake."""
    if (threads or 1) > 4 * _cores():
        raise ValueError(
            f"--threads {threads} is far more than the {_cores()} cores here: take at most {_cores()}"
        )


def resolve_views(config: Config, large: int) -> Config:
    """The choices that follow from the size of the large views and from the other options alone."""
    view_plan = plan(config.views, large=large, n_simclr=config.n_simclr)
    constant = config.schedule == "constant"
    warmup = 0.0 if constant else default_warmup(config.epochs)
    small = config.small or (large if large < 192 else 96)
    if config.target_views == "large_only" and (config.views == 2 or small == large):
        raise ValueError(
            f"--target-views large_only would change nothing: all views are of {large} px; "
            "take more --views and a smaller --small"
        )
    method = METHODS[config.method]
    layers = method.projector_layers or (2 if large <= SMALL_IMAGE else 3)
    return replace(
        config,
        large=large,
        small=small,
        n_simclr=sum(v.colour is not None for v in view_plan.views),
        look=config.look or ("cifar" if large <= SMALL_IMAGE else "imagenet"),
        projector_layers=config.projector_layers or layers,
        projector_dim=config.projector_dim or method.projector_dim,
        lr=config.lr or default_lr(config.optimizer, config.batch_size, sgd=method.base_lr),
        warmup=warmup if config.warmup is None else config.warmup,
    )


def _natural_size(images: Images) -> int:
    """The side of small images, from a few of them; 224 for all others."""
    sizes = [max(image.shape[1:]) for image in _some(images, 8, seed=0)]
    if not sizes:
        raise ValueError(
            "none of some images taken at random can be read: `ecpp scan SOURCE` says why; "
            "--large names the size of the views without looking"
        )
    return max(sizes) if max(sizes) <= SMALL_IMAGE else 224


def _some(images: Images, count: int, seed: int) -> Iterator[Tensor]:
    """A few random images; of those that cannot be read none."""
    for i in torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count].tolist():
        try:
            yield images.read(i)
        except Unreadable:
            continue  # the stream leaves it out and names it


def channel_statistics(images: Images, seed: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel in [0, 1], every image counted alike."""
    moments = [
        torch.stack([x.mean(dim=(1, 2)), x.square().mean(dim=(1, 2))])
        for x in (image.double() / 255 for image in _some(images, STATISTICS_FROM, seed))
    ]
    if not moments:
        raise ValueError("none of a thousand images can be read: `ecpp scan SOURCE` says why")
    mean, square = torch.stack(moments).mean(dim=0)
    std = (square - mean.square()).clamp(min=1e-4).sqrt()
    return tuple(round(v, 4) for v in mean.tolist()), tuple(round(v, 4) for v in std.tolist())


def usable_device(name: str | None) -> str:
    """The device of that name, or the best there is; one that is not here is an error."""
    if name is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()  # read back, since a meta device has shapes and no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).split("\n")[0][:160]
        raise ValueError(
            f"the device {name!r} cannot be used here ({reason}): --device cpu always can"
        ) from e
    return name


def precision_on(name: str) -> Literal["bf16", "fp16", "fp32"]:
    """bf16 where the hardware computes in it, fp16 on GPUs that do not; elsewhere both would be slower than fp32."""
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            return "fp16"
        native = True
    elif device.type == "cpu":
        able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        native = bool(able.get("amx_bf16") or able.get("avx512_bf16"))
    else:
        native = False
    return "bf16" if native else "fp32"
