"""Our ResNets in timm's registry: `timm.create_model("ecpp_resnet10", width=16, small_stem=True)`."""

from collections.abc import Callable
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from ecpp.model.resnet import LAYERS, ResNet

_INPUT: dict[str, Any] = {
    "input_size": (3, 32, 32),
    "pool_size": (4, 4),
    "interpolation": "bilinear",
    "first_conv": "conv1",
    "classifier": "fc",
}
default_cfgs = generate_default_cfgs(
    {f"ecpp_{name}": _INPUT for name in LAYERS}
)  # timm looks for it by this name


def _entry(name: str) -> Callable[..., nn.Module]:
    def make(*, in_chans: int = 3, **arguments: Any) -> nn.Module:
        return ResNet(name, channels=in_chans, **arguments)

    def entry(pretrained: bool = False, **arguments: Any) -> nn.Module:
        """A ResNet of any width, with the stem for small images if it is asked for."""
        model: nn.Module = build_model_with_cfg(make, f"ecpp_{name}", pretrained, **arguments)
        return model

    entry.__name__ = f"ecpp_{name}"  # timm registers a function by its name
    return entry


for _name in LAYERS:
    register_model(_entry(_name))
