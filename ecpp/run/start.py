"""Start a run, or go on with it."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ecpp import distributed
from ecpp.config import Config
from ecpp.data import Images, Unreadable
from ecpp.model.norm import synchronise
from ecpp.run import about, build
from ecpp.run.folder import RunFolder, write_json
from ecpp.run.go import Run, build_schedule
from ecpp.run.init import initialise
from ecpp.run.resolve import absolute, check_threads, resolve, usable_device
from ecpp.run.state import check_circumstances
from ecpp.train import load_checkpoint, newest_good

# What may change in the middle of a run: no weight depends on it (the images themselves are compared).
_FREE = frozenset({"workers", "log_every", "source", "log", "keep_best", "keep_epochs"})


def pretrain(
    config: Config,
    out: Path,
    *,
    console: Console | None = None,
    extend: int | None = None,
    allow_inexact: bool = False,
) -> RunFolder:
    """Pretrain into `out`; a run that is already there goes on if its config is the same, else it stands.

    Under torchrun every process calls this, and the first one writes. `extend` is a new, larger number of epochs.
    """
    config, folder = absolute(config), RunFolder(out)
    device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with distributed.start(device), ExitStack() as stack:
        console = console or Console(stderr=True)
        if not distributed.is_main():
            console = Console(quiet=True)
        begun = distributed.first(lambda: _begun(folder, config))
        data = build.open_data(config)
        resolved = Config.from_json(
            distributed.first(lambda: _resolved(config, folder, data.train, begun).to_json())
        )
        usable_device(resolved.device)
        torch.set_num_threads(resolved.threads or 1)
        started_from: list[str] = []

        def prepare(encoder: torch.nn.Module) -> None:
            if resolved.init is not None and not begun:
                started_from.append(initialise(encoder, resolved))

        method = build.build_method(resolved, prepare)
        synchronise(method)
        unreadable: list[Unreadable] = []  # images that were left out and not yet logged
        stream = build.build_stream(resolved, data.train, unreadable.append)
        distributed.first(lambda: stack.enter_context(folder.locked()))
        if not begun:
            about_run = _about(config, resolved, data.train) | {"started_from": started_from}
            distributed.first(lambda: write_json(folder.about, about_run))
        elif extend is not None:
            steps = stream.steps_per_epoch
            resolved = _extended(folder, resolved, extend, allow_inexact, steps, console)
        _announce(resolved, data, console)
        for sentence in started_from:
            console.print(sentence, highlight=False, markup=False)
        run = Run(resolved, folder, method, stream, data, unreadable, console)
        run.go(allow_inexact=allow_inexact)
        distributed.barrier()
    return folder


def resume(
    out: Path, *, console: Console | None = None, extend: int | None = None, allow_inexact: bool = False,
    threads: int | None = None,
) -> RunFolder:  # fmt: skip
    """Go on with the run in `out`, as it was configured; with other `threads` only if it may be inexact."""
    folder = RunFolder(out)
    if threads is not None:
        check_threads(replace(folder.config(), threads=threads).threads)  # before anything is written
    if threads is not None and threads != folder.resolved().threads:
        if not allow_inexact:
            raise ValueError(
                f"{out} ran with {folder.resolved().threads} threads, and {threads} would not give the same weights "
                "to the last bit: leave --threads out, or say --allow-inexact"
            )
        written = folder.read()
        for key in ("config", "resolved"):
            written[key]["threads"] = threads
        write_json(folder.about, written)
    return pretrain(folder.config(), out, console=console, extend=extend, allow_inexact=allow_inexact)


def _begun(folder: RunFolder, config: Config) -> bool:
    """Whether there is something to go on with. A run without a checkpoint has nothing to lose: it begins anew."""
    out = folder.path
    if folder.about.exists() and newest_good(folder.checkpoint)[0] is not None:
        _check_same(folder, config)
        return True
    if out.exists() and not folder.about.exists() and (not out.is_dir() or _holds_anything(out)):
        raise ValueError(f"{out} exists and is no run: choose another --out, or empty it")
    return False


def _holds_anything(out: Path) -> bool:
    return any(f.name != ".lock" for f in out.iterdir())


def _resolved(config: Config, folder: RunFolder, images: Images, begun: bool) -> Config:
    resolved = resolve(config, images)
    if not begun:
        return resolved
    _check_images(folder, images)
    return replace(folder.resolved(), **{f: getattr(resolved, f) for f in _FREE})


def _announce(config: Config, data: build.Data, console: Console) -> None:
    """What was found, and what will be done with it."""
    say = partial(console.print, highlight=False)
    for note in data.notes:
        say(note)
    train, held_out = data.train, data.held_out
    if held_out is not None and (train.labels is None or held_out.labels is None):
        say("no kNN while training: it needs labels (class folders) on both sides")
    classes = f"of {len(train.classes)} classes" if train.labels is not None else "without classes"
    others = "no held-out ones" if held_out is None else f"{len(held_out):,} held out"
    say(
        f"{len(train):,} images {classes}, {others}; {config.encoder} on {config.device} in {config.precision}, "
        f"views of {config.large} and {config.small} px, lr {config.lr:g}"
    )
    if distributed.world() > 1:
        share = config.batch_size // distributed.world()
        say(f"{distributed.world()} processes, {share} images of every batch of {config.batch_size} each")
    if config.accumulate > 1:
        say(
            f"every batch of {config.batch_size} in {config.accumulate} parts: the images of a part have negatives "
            f"among its {config.batch_size // config.accumulate} alone, and BatchNorm sees no more either"
        )
    if config.channels != 3:
        say(
            f"with {config.channels} channels, saturation, hue and grey make no sense and are off; "
            f"mean {config.mean}, std {config.std}"
        )


def _check_same(folder: RunFolder, config: Config) -> None:
    changed = {k: v for k, v in folder.config().difference(config).items() if k not in _FREE}
    if changed:
        lines = "\n".join(f"  {k}: {old} there, {new} now" for k, (old, new) in changed.items())
        raise ValueError(
            f"{folder.path} holds a run with another config:\n{lines}\n"
            f"`ecpp resume {folder.path}` goes on with it (and its --extend trains longer); "
            "another --out starts a new one"
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


def _extended(
    folder: RunFolder, config: Config, epochs: int, allow_inexact: bool, steps: int, console: Console
) -> Config:
    """The config with more epochs, also in run.json; the schedule is planned anew over all of them."""
    if epochs <= config.epochs:
        raise ValueError(
            f"--extend {epochs} is no extension: the run has {config.epochs} epochs; name a larger number"
        )
    longer = replace(config, epochs=epochs)
    state = load_checkpoint(newest_good(folder.checkpoint)[0] or folder.checkpoint)
    check_circumstances(state, config, allow_inexact=allow_inexact)  # before anything is written
    at = int(state["step"])
    old, new = (build_schedule(c, steps)(at) for c in (config, longer))
    console.print(
        f"extended from {config.epochs} to {epochs} epochs: the schedule is planned anew over all of them, so that "
        f"the learning rate of step {at} is {new:.3g} and not {old:.3g}; this is not the run that {epochs} epochs "
        "from the start would have been",
        highlight=False,
    )

    def write() -> None:
        written = folder.read()
        written.setdefault("extended", []).append({"from": config.epochs, "to": epochs, "step": at})
        for key in ("config", "resolved"):
            written[key]["epochs"] = epochs
        write_json(folder.about, written)

    distributed.first(write)
    return longer
