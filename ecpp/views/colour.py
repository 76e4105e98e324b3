"""The colour operations of SimCLR on a batch of float images in [0, 1], each with its own parameters.

Every function agrees with torchvision's functional operation on float tensors. Brightness, contrast,
saturation and greying are all `a·x + b·grey(x) + c`, so one step serves any of them for a whole batch.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from ecpp.views.draws import Params

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114  # torchvision's luma weights
_HUE = 3
SOLARIZE_FROM = 128 / 255


def luma(x: Tensor) -> Tensor:
    """(B, 3, H, W) to the grey image (B, H, W)."""
    return x[:, 0] * _RED + x[:, 1] * _GREEN + x[:, 2] * _BLUE


def blend(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Brightness (0), contrast (1) or saturation (2) of (B, 3, H, W), one operation and factor per image."""
    grey = luma(x)  # (B, H, W)
    rest = 1 - factor
    to_grey = torch.where(operation == 2, rest, 0)[:, None, None]
    to_mean = torch.where(operation == 1, rest * grey.mean(dim=(1, 2)), 0)[:, None, None]
    add = grey * to_grey + to_mean
    return torch.addcmul(add[:, None], x, factor[:, None, None, None]).clamp_(0, 1)


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of (B, 3, H, W) by `shift` of a full circle, one shift per image."""
    r, g, b = x.unbind(1)
    top = torch.maximum(torch.maximum(r, g), b)
    chroma = top - torch.minimum(torch.minimum(r, g), b)
    safe = torch.where(chroma == 0, 1, chroma)
    # The hue in sixths of a circle, counted from red, green or blue, whichever is largest.
    hue = torch.where(top == r, (g - b) / safe, torch.where(top == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    hue = hue + 6 * shift[:, None, None]
    channels = []
    for offset in (5, 3, 1):  # red, green, blue: a trapezoid over the circle, a third apart
        k = torch.remainder(hue + offset, 6)
        channels.append(top - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.stack(channels, dim=1).clamp_(0, 1)


@lru_cache
def _taps(size: int, kernel: int) -> tuple[Tensor, Tensor]:
    """Where the taps of a blur land with reflected edges: (size, kernel), and the taps' distances."""
    distance = torch.arange(kernel) - kernel // 2
    at = (torch.arange(size)[:, None] + distance).abs()
    return torch.where(at >= size, 2 * (size - 1) - at, at), distance.float()


def blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur of (B, C, S, S) with reflected edges, one sigma per image, as two products."""
    size = x.shape[-1]
    at, distance = (t.to(x.device, non_blocking=True) for t in _taps(size, kernel))
    taps = (-0.5 * (distance / sigma[:, None]) ** 2).exp()  # (B, kernel)
    taps = taps / taps.sum(dim=1, keepdim=True)
    matrix = x.new_zeros(len(x), size, size)
    matrix.scatter_add_(2, at.expand(len(x), -1, -1), taps[:, None].expand(-1, size, -1))
    matrix = matrix[:, None]  # (B, 1, S, S)
    return matrix @ x @ matrix.transpose(2, 3)


def solarize(x: Tensor) -> Tensor:
    """Invert what is at least half bright."""
    return torch.where(x >= SOLARIZE_FROM, 1 - x, x)


def jitter(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """ColorJitter: the four operations of each image in that image's own order; `factors` is (B, 4).

    The blends before the hue come first and those after it last, for all images: sorted by how many
    blends precede the hue, each of these steps is one contiguous slice of the batch.
    """
    before = (order == _HUE).int().argmax(dim=1)  # (B,): blends that precede the hue
    sort = before.argsort(stable=True)
    factors, order, before = factors[sort], order[sort], before[sort]
    blends = order[order != _HUE].view(-1, 3)  # (B, 3): the blends in their order
    amounts = factors.gather(1, blends).to(x.dtype)
    starts = [
        int((before <= step).sum()) for step in range(3)
    ]  # images from here on do `step` before the hue
    blends, amounts, hue = (
        t.to(x.device, non_blocking=True) for t in (blends, amounts, factors[:, _HUE].to(x.dtype))
    )
    x = x[sort.to(x.device, non_blocking=True)]
    for step, start in enumerate(starts):
        if start < len(x):
            x[start:] = blend(x[start:], blends[start:, step], amounts[start:, step])
    x = shift_hue(x, hue)
    for step, stop in enumerate(starts):
        if stop:
            x[:stop] = blend(x[:stop], blends[:stop, step], amounts[:stop, step])
    out = torch.empty_like(x)
    out[sort.to(x.device, non_blocking=True)] = x
    return out


def apply(x: Tensor, params: Params, kernel: int) -> Tensor:
    """Jitter, grey, blur and solarize, in this order, of (B, 3, S, S); the fields of `params` are (B, …).

    Which images an operation touches is decided on the CPU, where the parameters lie, so that no step
    waits for a GPU.
    """
    x = _where(x, params.jitter, lambda y, i: jitter(y, params.factors[i], params.order[i]))
    x = _where(x, params.grey, lambda y, i: luma(y)[:, None].expand_as(y))
    x = _where(
        x,
        params.sigma > 0,
        lambda y, i: blur(y, params.sigma[i].to(y.dtype).to(y.device, non_blocking=True), kernel),
    )
    return _where(x, params.solarize, lambda y, i: solarize(y))


def _where(x: Tensor, chosen: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`operation(x[i], i)` in place of the chosen images i; those left out cost nothing."""
    index = chosen.nonzero()[:, 0]
    if not len(index):
        return x
    there = index.to(x.device, non_blocking=True)
    x[there] = operation(x[there], index)
    return x
