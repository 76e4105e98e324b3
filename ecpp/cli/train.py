"""`ecpp pretrain`, `ecpp resume` and `ecpp replay`."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ecpp.cli.options import ConfigOptions, read, recipe_config


@dataclass(frozen=True)
class Pretrain:
    """Pretrain an encoder on images without labels. The same command goes on with a run that was stopped."""

    config: ConfigOptions
    out: Path
    """The run folder: made if it is missing, gone on with if its config is the same."""
    recipe: Literal["cifar10", "imagenet100", "imagenet1k"] | None = None
    """Start from the paper's setting; other options change it."""
    allow_inexact: bool = False
    """Go on with another number of processes or kind of device, though the last bits will differ."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, as it was configured."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    extend: int | None = None
    """Train for this many epochs in all, more than were asked for; the schedule is planned anew."""
    threads: int | None = None
    """CPU threads other than those of the run; needs --allow-inexact."""
    allow_inexact: bool = False
    """Go on with other threads, processes or devices, though the last bits will differ."""


@dataclass(frozen=True)
class Replay:
    """Run again from the last checkpoint to the step that broke a run, with checks on. Nothing is written."""

    run: tyro.conf.Positional[Path]
    """The run folder."""


def pretrain(argv: list[str]) -> None:
    options = read(Pretrain, "pretrain", argv, recipe_config(argv))
    from ecpp.run import pretrain as start

    _until_stopped(lambda: start(options.config, options.out, allow_inexact=options.allow_inexact))
    _next_steps(options.out)


def resume(argv: list[str]) -> None:
    options = read(Resume, "resume", argv)
    from ecpp.run import resume as go_on

    _until_stopped(
        lambda: go_on(
            options.run, extend=options.extend, threads=options.threads, allow_inexact=options.allow_inexact
        )
    )
    _next_steps(options.run)


def replay(argv: list[str]) -> None:
    options = read(Replay, "replay", argv)
    from ecpp.run.replay import replay as again

    sentence, reproduced = again(options.run)
    if os.environ.get("RANK", "0") == "0":
        print(sentence)
    if not reproduced:
        sys.exit(1)


def _until_stopped(train: Callable[[], object]) -> None:
    """A run that is told to stop says so, and ends with the code of its signal: 143 for SIGTERM, 130 for SIGINT."""
    from ecpp.run import Stopped

    try:
        train()
    except Stopped as e:
        if os.environ.get("RANK", "0") == "0":
            print(f"ecpp: {e}", file=sys.stderr)
        sys.exit(e.exit_code)


def _next_steps(run: Path) -> None:
    if os.environ.get("RANK", "0") != "0":  # torchrun's other processes
        return
    print(
        f"{run}\n  ecpp evaluate {run}    its accuracy, given labels\n  ecpp.load({str(run)!r})    its encoder"
    )
