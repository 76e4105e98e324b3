"""Start a run, or go on with it."""

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ecpp.config import Config
from ecpp.data import Images, Stream, Unreadable, subset
from ecpp.evaluate import features, knn_accuracy
from ecpp.method import Method
from ecpp.run import about, build
from ecpp.run.folder import RunFolder, write_json
from ecpp.run.init import initialise
from ecpp.run.resolve import absolute, resolve, usable_device
from ecpp.run.weights import keep_epoch
from ecpp.train import Progress, build_optimizer, learning_rate, load_checkpoint, save_checkpoint, train
from ecpp.train.loop import Hooks
from ecpp.train.progress import Display

KNN_IMAGES = 10_000  # at most, on either side, for the kNN of each epoch
SAVE_EVERY = 600.0  # seconds between two checkpoints within an epoch, which may take hours
# What may change in the middle of a run: no weight depends on it (the images themselves are compared).
_FREE = frozenset({"workers", "log_every", "source", "keep_epochs"})


def pretrain(config: Config, out: Path, *, console: Console | None = None) -> RunFolder:
    """Pretrain into `out`; a run that is already there goes on if its config is the same, else it stands."""
    config = absolute(config)
    folder = RunFolder(out)
    # A run without a checkpoint has nothing to lose: it may begin anew, with another config too.
    begun = folder.about.exists() and folder.checkpoint.exists()
    if begun:
        _check_same(folder, config)
    elif out.exists() and not folder.about.exists() and (not out.is_dir() or _holds_anything(out)):
        raise ValueError(f"{out} exists and is no run: choose another --out, or empty it")
    console = console or Console(stderr=True)
    data = build.open_data(config)
    resolved = resolve(config, data.train)
    if begun:
        _check_images(folder, data.train)
        resolved = replace(folder.resolved(), **{f: getattr(resolved, f) for f in _FREE})
        usable_device(resolved.device)
    torch.set_num_threads(resolved.threads or 1)
    started_from: list[str] = []

    def prepare(encoder: torch.nn.Module) -> None:
        if resolved.init is not None and not begun:
            started_from.append(initialise(encoder, resolved))

    method = build.build_method(resolved, prepare)
    unreadable: list[Unreadable] = []  # images that were left out and not yet logged
    stream = build.build_stream(resolved, data.train, unreadable.append)
    with folder.locked():
        if not begun:
            write_json(folder.about, _about(config, resolved, data.train) | {"started_from": started_from})
        _announce(resolved, data, console)
        for sentence in started_from:
            console.print(sentence, highlight=False, markup=False)
        _run(resolved, folder, method, stream, data, unreadable, console)
    return folder


def _holds_anything(out: Path) -> bool:
    return any(f.name != ".lock" for f in out.iterdir())


def resume(out: Path, *, console: Console | None = None) -> RunFolder:
    """Go on with the run in `out`, as it was configured."""
    return pretrain(RunFolder(out).config(), out, console=console)


def _announce(config: Config, data: build.Data, console: Console) -> None:
    """What was found, and what will be done with it."""
    for note in data.notes:
        console.print(note, highlight=False)
    train, held_out = data.train, data.held_out
    if held_out is not None and (train.labels is None or held_out.labels is None):
        console.print("no kNN while training: it needs labels (class folders) on both sides", highlight=False)
    classes = f"of {len(train.classes)} classes" if train.labels is not None else "without classes"
    others = "no held-out ones" if held_out is None else f"{len(held_out):,} held out"
    console.print(
        f"{len(train):,} images {classes}, {others}; {config.encoder} on {config.device} in {config.precision}, "
        f"views of {config.large} and {config.small} px, lr {config.lr:g}",
        highlight=False,
    )
    if config.channels != 3:
        console.print(
            f"with {config.channels} channels, saturation, hue and grey make no sense and are off; "
            f"mean {config.mean}, std {config.std}",
            highlight=False,
        )


def _check_same(folder: RunFolder, config: Config) -> None:
    changed = {k: v for k, v in folder.config().difference(config).items() if k not in _FREE}
    if changed:
        lines = "\n".join(f"  {k}: {old} there, {new} now" for k, (old, new) in changed.items())
        raise ValueError(
            f"{folder.path} holds a run with another config:\n{lines}\n"
            f"`ecpp resume {folder.path}` goes on with it; another --out starts a new one"
        )


def _check_images(folder: RunFolder, images: Images) -> None:
    """Other images would make other steps, views and learning rates of the same numbers."""
    before, now = folder.read().get("images"), about.fingerprint(images)
    if before is not None and before != now:
        raise ValueError(
            f"the images of {folder.path} have changed since it began ({before} there, {now} now): "
            "bring them back to go on, or start a new run with another --out"
        )


def _about(config: Config, resolved: Config, images: Images) -> dict[str, Any]:
    return {
        "name": about.name_of(resolved),
        "config": config.to_json(),
        "resolved": resolved.to_json(),
        "images": about.fingerprint(images),
        "plan": about.describe_plan(resolved),
        "environment": about.environment(resolved),
        "command": about.command_line(),
    }


def _run(
    config: Config,
    folder: RunFolder,
    method: Method,
    stream: Stream,
    data: build.Data,
    unreadable: list[Unreadable],
    console: Console,
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
    name = about.name_of(config)
    if progress.step >= total:
        console.print(f"{folder.path}: {name} is complete, {config.epochs} epochs", highlight=False)
        return
    if progress.step:
        console.print(f"{folder.path}: {name} goes on at step {progress.step} of {total}", highlight=False)
    lr_of = partial(
        learning_rate,
        peak=config.lr or 0.0,
        total=total,
        warmup=round((config.warmup or 0) * stream.steps_per_epoch),
        schedule=config.schedule,
    )
    judge = _knn_judge(config, method, data)
    decoding = stream.pixels is None
    with Display(
        console, name, epochs=config.epochs, total=total, step=progress.step, decoding=decoding
    ) as display:

        def log_unreadable() -> None:
            while unreadable:
                error = unreadable.pop(0)
                folder.append(
                    {"kind": "unreadable", "step": progress.step, "name": error.name, "reason": error.reason}
                )
                display.say(f"left out: {error.name}: {error.reason}")

        def log(record: dict[str, Any]) -> None:
            log_unreadable()
            folder.append(record)
            display.show(record)

        def after_epoch(epoch: int) -> dict[str, Any]:
            if config.keep_epochs:
                keep_epoch(folder, method.encoder, epoch)
            return judge(epoch)

        hooks = Hooks(
            log=log,
            after_epoch=after_epoch,
            save=lambda: save_checkpoint(_state(method, optimizer, progress), folder.checkpoint),
        )
        try:
            train(
                method,
                stream,
                optimizer,
                lr_of,
                progress,
                hooks,
                epochs=config.epochs,
                pairs_per_image=about.pairs_per_image(config),
                bf16=config.precision == "bf16",
                clip=config.clip,
                log_every=config.log_every,
                save_every=SAVE_EVERY,
            )
        finally:
            log_unreadable()  # where they end the run, too


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
    try:
        method.load_state_dict(state["method"], strict=True)
        optimizer.load_state_dict(state["optimizer"])
        for field in fields(progress):
            setattr(progress, field.name, type(getattr(progress, field.name))(state[field.name]))
        torch.set_rng_state(state["rng"].cpu())
        if "cuda_rng" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda_rng"]])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as e:
        reason = str(e).strip().split("\n")[0][:200]
        raise ValueError(f"the checkpoint does not belong to this run's config ({reason})") from e


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
            pairs += [f.values, images.labels[f.index]]  # type: ignore[index]
        return {"knn": knn_accuracy(*pairs)}

    return judge
