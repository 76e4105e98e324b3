"""How configs are read from a command line."""

import dataclasses
from typing import Annotated, Literal, TypeVar, cast

import tyro

from ecpp.config import Config
from ecpp.recipes import RECIPES

# The fields of a config stand as plain options, and its source as the first word.
ConfigOptions = Annotated[Config, tyro.conf.OmitArgPrefixes, tyro.conf.PositionalRequiredArgs]
# ecpp.run.Epoch, which is not imported before it is needed: PyTorch comes with it.
WhichEpoch = int | Literal["best"] | None

T = TypeVar("T")


def read(kind: type[T], command: str, argv: list[str], config: Config | None = None) -> T:
    """`kind` from `argv`; `config` holds the defaults of its field of that name."""
    default = None if config is None else _with_config(kind, config)
    options = tyro.cli(
        kind,
        prog=f"ecpp {command}",
        args=argv,
        default=default,
        config=(tyro.conf.HelptextFromCommentsOff,),
    )
    return cast(T, options)


def _with_config(kind: type[T], config: Config) -> T:
    """An instance whose other fields have their defaults, or are still missing."""
    values = {}
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        known = f.default is not dataclasses.MISSING
        values[f.name] = config if f.name == "config" else (f.default if known else tyro.MISSING)
    return kind(**values)


def recipe_config(argv: list[str]) -> Config | None:
    """The defaults of the recipe that `argv` names, its source still open; None without a recipe."""
    for i, word in enumerate(argv):
        if word == "--recipe" or word.startswith("--recipe="):
            name = word.partition("=")[2] or (argv[i + 1] if i + 1 < len(argv) else "")
            if name == "None":
                return None
            if name not in RECIPES:
                raise ValueError(f"--recipe must be one of {', '.join(RECIPES)}, but is {name!r}")
            return RECIPES[name](tyro.MISSING)
    return None
