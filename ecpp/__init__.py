"""ecpp: pretrain image encoders from K views of every image, pairing all of them.

Importing this module loads nothing else: the public names come in when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ecpp import method, objective, views
    from ecpp.method import BYOL, SimCLR
    from ecpp.run.weights import load as load

__version__ = "0.1.0"
__all__ = ["BYOL", "SimCLR", "__version__", "load", "method", "objective", "views"]

_HOMES = {"load": "ecpp.run.weights", "SimCLR": "ecpp.method", "BYOL": "ecpp.method"}
_MODULES = ("method", "objective", "views")


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"ecpp.{name}")
    raise AttributeError(f"module 'ecpp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
