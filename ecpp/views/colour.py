"""The colour operations of SimCLR on a batch of float images in [0, 1], each with its own parameters.

Every function agrees with torchvision's functional operation on float tensors. What they cost is passes over
memory, so they work in place, and without comparisons, selections and remainders of pixels, which are slow on
CPUs. Brightness, contrast and saturation are all `a·x + b·grey(x) + c`: one step serves any of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.views.draws import Params, to_device
from ecpp.views.plan import SMALL_IMAGE

_LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights
_CONTRAST, _SATURATION, _HUE = 1, 2, 3
SOLARIZE_FROM = 128 / 255


def luma(x: Tensor) -> Tensor:
    """(B, C, H, W) to the grey image (B, 1, H, W); of other than three channels the mean."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    grey = x[:, 0:1] * _LUMA[0]
    return grey.add_(x[:, 1:2], alpha=_LUMA[1]).add_(x[:, 2:3], alpha=_LUMA[2])


class Blend(NamedTuple):
    """Brightness, contrast or saturation of some images, each (B, 1, 1, 1): times·x + mean·mean(grey) + grey·grey."""

    times: Tensor
    mean: Tensor
    grey: Tensor
    is_brightness: bool  # of all of them: nothing grey is needed

    def part(self, start: int, stop: int) -> "Blend":
        return Blend(self.times[start:stop], self.mean[start:stop], self.grey[start:stop], self.is_brightness)


def blends(operation: Tensor, factor: Tensor, device: torch.device) -> Blend:
    """One operation (0 brightness, 1 contrast, 2 saturation) and factor per image, as tables on `device`."""
    rest = 1 - factor
    columns = (
        factor,
        torch.where(operation == _CONTRAST, rest, 0),
        torch.where(operation == _SATURATION, rest, 0),
    )
    tables = (to_device(c.float()[:, None, None, None], device) for c in columns)
    times, mean, grey = tables
    return Blend(times, mean, grey, not operation.any())


def blend_(x: Tensor, blend: Blend) -> Tensor:
    """One blend in place for each of (B, C, H, W)."""
    if blend.is_brightness:
        return x.mul_(blend.times).clamp_(0, 1)
    grey = luma(x)
    mean = grey.mean(dim=(1, 2, 3), keepdim=True).mul_(blend.mean)
    return x.mul_(blend.times).add_(grey.mul_(blend.grey).add_(mean)).clamp_(0, 1)


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of (B, 3, H, W) by `shift` (B,) of a full circle, at most half of one.

    With C the chroma and d the distance of the hue from a primary colour on a circle of six, that colour's channel
    is top - C·clamp(d - 1, 0, 1). Everything is computed in multiples of C, so that nothing is divided by it.
    """
    r, g, b = x.unbind(1)
    top = torch.maximum(torch.maximum(r, g), b)
    low = torch.minimum(torch.minimum(r, g), b)
    chroma = top - low
    # C·d from red, without sign: C - r + g + b - low; the sign says whether the hue lies towards green or blue.
    hue = torch.copysign((chroma - low).sub_(r).add_(g).add_(b), g - b)
    hue.addcmul_(chroma, 6 * shift[:, None, None])  # (B, H, W), within ±6C
    double, triple, full = chroma * 2, chroma * 3, top + chroma
    out = torch.empty_like(x)
    for channel, turned in enumerate((hue, hue - double, hue + double)):  # from red, green, blue; within ±8C
        way = turned.abs_().sub_(triple).abs_().sub_(triple).abs_()  # the shorter way around the circle
        torch.clamp(full - way, min=low, max=top, out=out[:, channel])
    return out


def blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur of (B, C, H, W) with reflected edges, one sigma per image: first along columns, then rows.

    Taps beyond four sigmas weigh less than a ten-thousandth in all and are left out.
    """
    reach = min(kernel // 2, math.ceil(4 * float(sigma.max())))
    distance = torch.arange(-reach, reach + 1)
    taps = (-0.5 * (distance / sigma[:, None]) ** 2).exp()  # (B, taps)
    taps = (taps / taps.sum(dim=1, keepdim=True)).T.contiguous()
    weights = to_device(taps[:, :, None, None, None].float(), x.device)  # (taps, B, 1, 1, 1)
    for axis, edges in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        size, padded = x.shape[axis], F.pad(x, edges, mode="reflect")
        x = padded.narrow(axis, 0, size) * weights[0]
        for i in range(1, len(weights)):
            x.addcmul_(padded.narrow(axis, i, size), weights[i])
    return x


def solarize(x: Tensor) -> Tensor:
    """Invert what is at least half bright."""
    return torch.where(x >= SOLARIZE_FROM, 1 - x, x)


@dataclass(frozen=True)
class Recipe:
    """The colour operations of many crops, which were put into `order` so that as many as can be do the same."""

    order: Tensor  # (B,): the crops by how many blends precede their hue; those without jitter last
    params: Params  # in that order
    before: list[int]  # where the crops begin that have more than 0, 1, 2, 3 blends before the hue
    steps: tuple[Blend, ...]  # first, second and third blend
    shift: Tensor  # (B,) of the hue


def prepare(params: Params, device: torch.device) -> Recipe:
    """Sort the crops and put the numbers that belong to pixels where the pixels are; all else stays on the CPU."""
    rank = torch.where(params.jitter, (params.order == _HUE).int().argmax(dim=-1), 4)
    order = rank.argsort(stable=True)
    params = params.take(order)
    three = params.order[params.order != _HUE].view(-1, 3)  # (B, 3): the blends in their order
    amounts = params.factors.gather(1, three)
    return Recipe(
        order,
        params,
        [int((rank <= r).sum()) for r in range(4)],
        tuple(blends(three[:, i], amounts[:, i], device) for i in range(3)),
        to_device(params.factors[:, _HUE].float(), device),
    )


def jitter_(x: Tensor, recipe: Recipe, start: int) -> None:
    """ColorJitter in place for the crops of a recipe from `start` on, each in its own order of operations.

    The blends before the hue come first and those after it last, so that each step is one slice.
    """
    end = start + len(x)
    *bounds, stop = (min(max(b, start), end) for b in recipe.before)  # crops up to `stop` are jittered
    for step, bound in enumerate(bounds):
        if bound < stop:
            blend_(x[bound - start : stop - start], recipe.steps[step].part(bound, stop))
    if stop > start and x.shape[1] == 3:
        x[: stop - start] = shift_hue(x[: stop - start], recipe.shift[start:stop])
    for step, bound in enumerate(bounds):
        if bound > start:
            blend_(x[: bound - start], recipe.steps[step].part(start, bound))


def apply_(x: Tensor, recipe: Recipe, start: int, kernel: int) -> Tensor:
    """Jitter, grey, blur and solarize in place: x (B, C, H, W) holds the crops of a recipe from `start` on.

    Which images an operation touches is decided on the CPU, where the parameters lie, so that no step
    waits for a GPU.
    """
    jitter_(x, recipe, start)
    mine = recipe.params.take(slice(start, start + len(x)))
    _on(x, mine.grey, lambda y, _: luma(y).expand_as(y))
    _on(x, mine.sigma > 0, lambda y, i: blur(y, mine.sigma[i], kernel))
    _on(x, mine.solarize, lambda y, _: solarize(y))
    return x


def _on(x: Tensor, chosen: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`operation(x[i], i)` in place of the chosen images i; those left out cost nothing.

    A CPU takes large ones one by one, without a copy and while each is in the cache; else they go all at once.
    """
    index = chosen.nonzero()[:, 0]
    if x.device.type == "cpu" and x.shape[-1] > SMALL_IMAGE:
        for i in index.tolist():
            x[i : i + 1] = operation(x[i : i + 1], index.new_tensor([i]))
    elif len(index):
        there = to_device(index, x.device)
        x.index_copy_(0, there, operation(x.index_select(0, there), index))
