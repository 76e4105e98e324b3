"""From a config to objects. Choices that depend on the data or the machine are made here, once."""

import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ecpp.config import Config
from ecpp.data import Images, Splits, Stream, check_classes, open_source, subset
from ecpp.evaluate import Preprocess
from ecpp.method import BYOL, Method, SimCLR
from ecpp.model import create_encoder, mlp, probe
from ecpp.objective.pairs import GRAPHS, count
from ecpp.train.optim import default_lr, default_warmup
from ecpp.views import ViewPlan, plan
from ecpp.views.plan import LOOKS, SMALL_IMAGE


@dataclass(frozen=True)
class Data:
    """The images of a run: those it learns from, and held-out ones if there are any."""

    train: Images
    held_out: Images | None
    notes: tuple[str, ...] = ()


def open_data(config: Config) -> Data:
    """The source of a config, cut to its limit."""
    splits = open_source(config.source)
    held_out = splits.test
    if config.val is not None:
        held_out = held_out_images(open_source(config.val))
    if splits.train.labels is not None and held_out is not None and held_out.labels is not None:
        check_classes(splits.train, held_out)
    return Data(subset(splits.train, config.limit, config.seed), held_out, splits.notes)


def held_out_images(splits: Splits) -> Images:
    """What a source named by --val stands for: its test split, or all of it."""
    return splits.train if splits.test is None else splits.test


def absolute(config: Config) -> Config:
    """The config with the folders it names written in full, so that a run can go on from anywhere."""

    def full(source: str) -> str:
        path = Path(source).expanduser()
        return str(path.resolve()) if path.is_dir() else source

    return replace(config, source=full(config.source), val=config.val and full(config.val))


def resolve(config: Config, images: Images) -> Config:
    """Every None replaced by what the images, the machine or the paper's rules say."""
    config = resolve_views(config, config.large or _natural_size(images))
    device = usable_device(config.device)
    return replace(
        config,
        projector_layers=config.projector_layers or (2 if config.look == "cifar" else 3),
        precision=precision_on(device) if config.precision == "auto" else config.precision,
        device=device,
        threads=config.threads or torch.get_num_threads(),
        workers=min(8, (os.cpu_count() or 1) - 1) if config.workers is None else config.workers,
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


def build_plan(config: Config) -> ViewPlan:
    """The views of a resolved config."""
    return plan(
        config.views,
        large=config.large or 0,
        small=config.small,
        n_simclr=config.n_simclr,
        look=LOOKS[config.look or "cifar"],
        crop_scale=config.crop_scale,
    )


def build_encoder(config: Config) -> nn.Module:
    """The encoder of a resolved config, with the weights that its seed gives."""
    torch.manual_seed(config.seed)
    return create_encoder(config.encoder, size=config.large or 0, width=config.width)


def build_method(config: Config) -> Method:
    """The method of a resolved config on its device; the encoder has seen every view size once."""
    view_plan = build_plan(config)
    encoder = build_encoder(config)
    features = probe(encoder, [size for size, _ in view_plan.groups])
    # Without a seed of their own the heads would depend on how the encoder draws its weights.
    torch.manual_seed(config.seed + 1)
    hidden, out = features, config.projector_dim
    layers = config.projector_layers or 2
    pairs = None if config.pairing == "full" else GRAPHS[config.pairing](config.views)
    method: Method
    if config.method == "byol":
        projector = mlp(features, hidden, out, layers=layers, final_bn=False)
        predictor = mlp(out, hidden, out, layers=2, final_bn=False)
        method = BYOL(
            encoder,
            projector,
            predictor,
            pairs=pairs,
            pair_reduction=config.pair_reduction,
            ema=config.ema,
            bn_mode=config.bn_mode,
        )
    else:
        method = SimCLR(
            encoder,
            mlp(features, hidden, out, layers=layers, final_bn=True),
            tau=config.tau,
            positive_in_denominator=config.loss == "vanilla",
            pairs=pairs,
            pair_reduction=config.pair_reduction,
            bn_mode=config.bn_mode,
        )
    return method.to(device=config.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def build_stream(config: Config, images: Images) -> Stream:
    return Stream(
        images,
        build_plan(config),
        batch_size=config.batch_size,
        seed=config.seed,
        workers=config.workers or 0,
        device=torch.device(config.device or "cpu"),
    )


def build_preprocess(config: Config) -> Preprocess:
    view_plan = build_plan(config)
    return Preprocess(view_plan.large, view_plan.mean, view_plan.std)


def name_of(config: Config) -> str:
    """What a report calls a run: ECPP×K is SimCLR×K with K > 2 views, all pairs and the paper's loss."""
    if config.method == "byol":
        return f"BYOL×{config.views}"
    is_ecpp = config.views > 2 and config.loss == "ecpp" and config.pairing == "full"
    return f"{'ECPP' if is_ecpp else 'SimCLR'}×{config.views}"


def pairs_per_image(config: Config) -> int:
    """How many pairs of its graph teach for every image."""
    return count(GRAPHS[config.pairing](config.views))


def fingerprint(images: Images) -> dict[str, Any]:
    """What tells one set of images from another: their number and a hash of their names, in order."""
    names = hashlib.sha256()
    for i in range(len(images)):
        names.update(images.name(i).encode("utf-8", "surrogateescape") + b"\0")
    return {"count": len(images), "names": names.hexdigest()[:16]}


def describe_plan(config: Config) -> dict[str, Any]:
    """The plan as JSON."""
    view_plan = build_plan(config)
    return {
        "views": [{"size": v.size, "kind": v.kind} for v in view_plan.views],
        "pairs_per_image": pairs_per_image(config),
        "relative_compute": view_plan.relative_compute,
    }


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
