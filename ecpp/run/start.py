"""Start a run, or go on with it."""

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ecpp.config import Config
from ecpp.data import Images, Stream, subset
from ecpp.evaluate import features, knn_accuracy
from ecpp.method import Method
from ecpp.run import build
from ecpp.run.folder import RunFolder, write_json
from ecpp.train import Progress, build_optimizer, learning_rate, load_checkpoint, save_checkpoint, train
from ecpp.train.loop import Hooks
from ecpp.train.progress import Display

KNN_IMAGES = 10_000  # at most, on either side, for the kNN of each epoch
SAVE_EVERY = 600.0  # seconds between two checkpoints within an epoch, which may take hours
_FREE = frozenset({"workers", "log_every"})  # what may change in the middle of a run: no weight depends on it


def pretrain(config: Config, out: Path, *, console: Console | None = None) -> RunFolder:
    """Pretrain into `out`; a run that is already there goes on if its config is the same, else it stands."""
    folder = RunFolder(out)
    if folder.about.exists():
        _check_same(folder, config)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is no run: choose another --out, or empty it")
    console = console or Console(stderr=True)
    data = build.open_data(config)
    if folder.about.exists():
        resolved = folder.resolved()
        resolved = replace(resolved, **{f: getattr(build.resolve(config, data.train), f) for f in _FREE})
    else:
        resolved = build.resolve(config, data.train)
    torch.set_num_threads(resolved.threads or 1)
    method = build.build_method(resolved)
    stream = build.build_stream(resolved, data.train)
    if not folder.about.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_json(folder.about, _about(config, resolved))
    _run(resolved, folder, method, stream, data, console)
    return folder


def resume(out: Path, *, console: Console | None = None) -> RunFolder:
    """Go on with the run in `out`, as it was configured."""
    return pretrain(RunFolder(out).config(), out, console=console)


def _check_same(folder: RunFolder, config: Config) -> None:
    changed = {k: v for k, v in folder.config().difference(config).items() if k not in _FREE}
    if changed:
        lines = "\n".join(f"  {k}: {old} there, {new} now" for k, (old, new) in changed.items())
        raise ValueError(
            f"{folder.path} holds a run with another config:\n{lines}\n"
            f"`ecpp resume {folder.path}` goes on with it; another --out starts a new one"
        )


def _about(config: Config, resolved: Config) -> dict[str, Any]:
    return {
        "name": build.name_of(resolved),
        "config": config.to_json(),
        "resolved": resolved.to_json(),
        "plan": build.describe_plan(resolved),
        "environment": build.environment(resolved),
        "command": build.command_line(),
    }


def _run(
    config: Config, folder: RunFolder, method: Method, stream: Stream, data: build.Data, console: Console
) -> None:
    optimizer = build_optimizer(
        config.optimizer,
        method,
        lr=config.lr or 0.0,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    progress = Progress()
    if folder.checkpoint.exists():
        _restore(load_checkpoint(folder.checkpoint, config.device or "cpu"), method, optimizer, progress)
    folder.rewind(progress.step)
    total = config.epochs * stream.steps_per_epoch
    name = build.name_of(config)
    if progress.step >= total:
        console.print(f"{folder.path}: {name} is complete, {config.epochs} epochs", highlight=False)
        return
    if progress.step:
        console.print(f"{folder.path}: {name} goes on at step {progress.step} of {total}", highlight=False)
    lr_of = partial(
        learning_rate,
        peak=config.lr or 0.0,
        total=total,
        warmup=round((config.warmup or 0) * stream.steps_per_epoch) if config.schedule == "cosine" else 0,
        schedule=config.schedule,
    )
    judge = _knn_judge(config, method, data)
    with Display(console, name, epochs=config.epochs, total=total, step=progress.step) as display:

        def log(record: dict[str, Any]) -> None:
            folder.append(record)
            display.show(record)

        hooks = Hooks(
            log=log,
            after_epoch=judge,
            save=lambda: save_checkpoint(_state(method, optimizer, progress), folder.checkpoint),
        )
        train(
            method,
            stream,
            optimizer,
            lr_of,
            progress,
            hooks,
            epochs=config.epochs,
            pairs_per_image=build.pairs_per_image(config),
            bf16=config.precision == "bf16",
            clip=config.clip,
            log_every=config.log_every,
            save_every=SAVE_EVERY,
        )


def _state(method: Method, optimizer: torch.optim.Optimizer, progress: Progress) -> dict[str, Any]:
    """All that changes while training. The views need no state: they are a function of seed and step."""
    state = {
        "method": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        **asdict(progress),
        "rng": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda_rng"] = torch.cuda.get_rng_state_all()
    return state


def _restore(
    state: dict[str, Any], method: Method, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    method.load_state_dict(state["method"], strict=True)
    optimizer.load_state_dict(state["optimizer"])
    for field in fields(progress):
        setattr(progress, field.name, state[field.name])
    torch.set_rng_state(state["rng"].cpu())
    if "cuda_rng" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda_rng"]])


def _knn_judge(config: Config, method: Method, data: build.Data) -> Callable[[int], dict[str, Any]]:
    """kNN on held-out images where both sides have labels; nothing otherwise."""
    if data.held_out is None or data.held_out.labels is None or data.train.labels is None:
        return lambda _: {}
    preprocess = build.build_preprocess(config)
    sides: list[Images] = [subset(i, KNN_IMAGES, config.seed) for i in (data.train, data.held_out)]

    def judge(_: int) -> dict[str, Any]:
        pairs: list[torch.Tensor] = []
        for images in sides:
            f = features(
                method.encoder,
                images,
                preprocess,
                workers=config.workers or 0,
                bf16=config.precision == "bf16",
            )
            pairs += [f, images.labels]  # type: ignore[list-item]
        return {"knn": knn_accuracy(*pairs)}

    return judge
