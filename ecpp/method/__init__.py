"""Methods: modules from a ViewBatch to a Step. This table is all that is loaded until one of them is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ecpp.method.barlow import BarlowTwins
    from ecpp.method.byol import BYOL
    from ecpp.method.mocov3 import MoCoV3
    from ecpp.method.parts import Method, Step
    from ecpp.method.simclr import SimCLR
    from ecpp.method.simsiam import SimSiam
    from ecpp.method.vicreg import VICReg
    from ecpp.method.wmse import WMSE


class Entry(NamedTuple):
    """A method as the command line knows it."""

    home: str
    """module:class"""
    title: str
    """What reports call it."""
    options: tuple[str, ...] = ()
    """The options that it reads beyond those of all methods."""
    projector_dim: int = 256
    projector_layers: int | None = None
    """None takes 2 layers up to 64 px, else 3."""
    base_lr: float = 0.4
    """SGD's highest learning rate per 256 images."""

    def load(self) -> Any:
        """The class itself, with PyTorch behind it."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)


_FOLLOWS = ("ema", "ema_schedule", "ema_per_pair", "target_views")  # those with a slowly moving target

METHODS = {
    "simclr": Entry("ecpp.method.simclr:SimCLR", "SimCLR", ("tau", "loss")),
    "byol": Entry("ecpp.method.byol:BYOL", "BYOL", _FOLLOWS),
    "simsiam": Entry("ecpp.method.simsiam:SimSiam", "SimSiam", ("stop_gradient", "target_views")),
    "mocov3": Entry("ecpp.method.mocov3:MoCoV3", "MoCo v3", ("tau", *_FOLLOWS)),
    "barlow": Entry("ecpp.method.barlow:BarlowTwins", "Barlow Twins", (), 512, 3, 0.012),
    "vicreg": Entry("ecpp.method.vicreg:VICReg", "VICReg", (), 512, 3, 0.04),
    "wmse": Entry("ecpp.method.wmse:WMSE", "W-MSE", (), 16),
}


def methods_by_option() -> dict[str, list[str]]:
    """Every option that belongs to some of the methods, with their names."""
    options = dict.fromkeys(o for entry in METHODS.values() for o in entry.options)
    return {o: [name for name, entry in METHODS.items() if o in entry.options] for o in options}


__all__ = ["BYOL", "METHODS", "WMSE", "BarlowTwins", "Entry", "Method", "MoCoV3", "SimCLR", "SimSiam", "Step",
           "VICReg", "methods_by_option"]  # fmt: skip

_HOMES = dict(entry.home.split(":")[::-1] for entry in METHODS.values())
_HOMES |= {"Method": "ecpp.method.parts", "Step": "ecpp.method.parts"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ecpp.method' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
