"""Encoders by name: timm's, and our own narrow ResNets. All map (B, C, H, W) to (B, num_features)."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ecpp.model.resnet import LAYERS, ResNet

SMALL_IMAGE = 64  # up to this size a ResNet keeps the resolution in its stem
STANDARD_WIDTH = 64  # channels of a ResNet's first stage


class Entry(NamedTuple):
    """What timm calls an encoder: `timm.create_model(name, **arguments)` builds it."""

    name: str
    arguments: dict[str, Any]


def create_encoder(
    name: str,
    *,
    size: int,
    width: int | None = None,
    small_stem: bool | None = None,
    channels: int = 3,
) -> nn.Module:
    """An encoder without its classifier, for views of up to `size` px; `probe` tells the width of its output.

    `width` narrows a ResNet (64 is the standard), `small_stem` is for ResNets too (default: up to 64 px).
    """
    small_stem = _check(name, size, width, small_stem)
    if name in LAYERS:
        return ResNet(name, width=width or STANDARD_WIDTH, small_stem=small_stem, channels=channels)
    return _from_timm(name, size, channels)[0]


def timm_entry(
    name: str,
    *,
    size: int,
    width: int | None = None,
    small_stem: bool | None = None,
    channels: int = 3,
) -> Entry:
    """How timm builds what `create_encoder` builds: by its own name, or by one that `import ecpp.model` registers."""
    small_stem = _check(name, size, width, small_stem)
    if name not in LAYERS:
        return Entry(name, _from_timm(name, size, channels)[1])
    width = width or STANDARD_WIDTH
    arguments: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    if width == STANDARD_WIDTH and not small_stem and name != "resnet10":
        return Entry(name, arguments)
    return Entry(f"ecpp_{name}", arguments | {"width": width, "small_stem": small_stem})


def _check(name: str, size: int, width: int | None, small_stem: bool | None) -> bool:
    """Whether it gets the stem for small images; a sentence if it cannot be built."""
    if small_stem is None:
        small_stem = name in LAYERS and size <= SMALL_IMAGE
    if name not in LAYERS:
        _check_known(name)
        if width is not None or small_stem:
            raise ValueError(
                f"width and the stem for small images are for {', '.join(LAYERS)}, not for {name!r}"
            )
    if width is not None and width < 1:
        raise ValueError(f"the width of an encoder must be at least 1, but is {width}")
    return small_stem


def _check_known(name: str) -> None:
    import timm

    if not timm.is_model(name):
        near = get_close_matches(name, sorted({*LAYERS, *timm.list_models()}), n=3)
        raise ValueError(f"there is no encoder {name!r} in ecpp or timm; near: {', '.join(near) or 'none'}")


def _from_timm(name: str, size: int, channels: int) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and the arguments that timm built it with."""
    import timm

    arguments: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    tries = [arguments]
    defaults = timm.get_pretrained_cfg(name)
    if defaults is not None and defaults.fixed_input_size:
        # Position embeddings are made for `size` and, where the model can, stretched for every other view.
        tries = [
            arguments | {"img_size": size, "dynamic_img_size": True},
            arguments | {"img_size": size},
            arguments,
        ]
    for attempt in tries:
        try:
            return timm.create_model(name, **attempt), attempt
        except (TypeError, ValueError, AssertionError, RuntimeError) as e:
            reason = str(e)
    raise ValueError(f"timm cannot build {name!r} for views of {size} px: {reason}")


def shrinks_to_a_pixel(encoder: nn.Module, sizes: Sequence[int], *, channels: int = 3) -> bool:
    """Whether a strided convolution with a window is ever given a single pixel (its bf16 gradients can be wrong)."""
    seen: list[bool] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1 and max(module.stride) > 1:
            seen.append(inputs[0].shape[2:] == (1, 1))

    hooks = [m.register_forward_pre_hook(look) for m in encoder.modules()]
    try:
        probe(encoder, sizes, channels=channels)
    finally:
        for hook in hooks:
            hook.remove()
    return any(seen)


def probe(encoder: nn.Module, sizes: Sequence[int], *, channels: int = 3) -> int:
    """One forward pass at every size; the width of the output, or one sentence on the size that fails."""
    was_training = encoder.training
    parameter = next(encoder.parameters())
    encoder.eval()
    width = 0
    try:
        for size in sizes:
            images = torch.zeros(2, channels, size, size, device=parameter.device)
            try:
                with torch.no_grad():
                    out = encoder(images)
            except (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError) as e:
                reason = str(e).strip().split("\n")[0][:200] or type(e).__name__
                raise ValueError(
                    f"the encoder cannot take views of {size} px ({reason}): choose another size"
                ) from e
            if out.ndim != 2:
                raise ValueError(
                    f"the encoder must return one vector per image, (B, D), but returned {tuple(out.shape)}"
                )
            width = out.shape[1]
    finally:
        encoder.train(was_training)
    return width
