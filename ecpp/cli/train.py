"""`ecpp pretrain` and `ecpp resume`."""

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


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, as it was configured."""

    run: tyro.conf.Positional[Path]
    """The run folder."""


def pretrain(argv: list[str]) -> None:
    options = read(Pretrain, "pretrain", argv, recipe_config(argv))
    from ecpp.run import pretrain as start

    start(options.config, options.out)
    _next_steps(options.out)


def resume(argv: list[str]) -> None:
    options = read(Resume, "resume", argv)
    from ecpp.run import resume as go_on

    go_on(options.run)
    _next_steps(options.run)


def _next_steps(run: Path) -> None:
    print(
        f"{run}\n  ecpp evaluate {run}    its accuracy, given labels\n  ecpp.load({str(run)!r})    its encoder"
    )
