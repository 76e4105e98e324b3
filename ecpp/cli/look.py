"""`ecpp plan` and `ecpp views`: what a setting means, before anything is spent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ecpp.cli.options import ConfigOptions, read, recipe_config
from ecpp.config import Config

EVERY = ("2", "4", "6", "8")  # what --measure tries when it names nothing


@dataclass(frozen=True)
class Plan:
    """The views of a setting, its pairs and its cost: ecpp plan [SOURCE] [the options of ecpp pretrain]."""

    config: ConfigOptions
    recipe: Literal["cifar10", "imagenet100", "imagenet1k"] | None = None
    """Start from the paper's setting; other options change it."""
    measure: tuple[str, ...] | None = None
    """Take a few steps with each of these K, or K with a size of small views as in 6x20: time and memory. Without
    any it tries 2, 4, 6 and 8."""


@dataclass(frozen=True)
class Views:
    """A picture of the K views of a few images. Takes the options of `ecpp pretrain`."""

    config: ConfigOptions
    out: Path
    """The picture, a PNG."""
    images: int = 6
    """How many images."""
    recipe: Literal["cifar10", "imagenet100", "imagenet1k"] | None = None
    """Start from the paper's setting; other options change it."""


def plan(argv: list[str]) -> None:
    import dataclasses

    if argv and not argv[0].startswith("-"):
        argv = ["--source", *argv]
    default = recipe_config(argv) or Config(source="")
    options = read(Plan, "plan", argv, dataclasses.replace(default, source=""))
    from ecpp.run.explain import candidates, explain, explain_costs

    tried = None if options.measure is None else candidates(options.config, options.measure or EVERY)
    explain(options.config)
    if tried is not None:
        explain_costs(options.config, tried)


def views(argv: list[str]) -> None:
    options = read(Views, "views", argv, recipe_config(argv))
    from ecpp.run.pictures import views_picture

    print(views_picture(options.config, options.out, images=options.images))
