"""Every random number of a view, as a pure function of (seed, epoch, sample, view, slot).

A draw is a hash of its coordinates, not the next state of a generator: the same sample gets the same
views with any number of workers or ranks, in any order, before and after a crash.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ecpp.views.plan import View, ViewPlan

TRIES = 10  # torchvision gives a crop ten tries before it takes the centre
# Slots: 0..9 area, 10..19 aspect, then one each.
_TOP, _LEFT, _FLIP, _JITTER, _B, _C, _S, _H, _ORDER, _GREY, _BLUR, _SIGMA, _SOLARIZE = range(2 * TRIES, 33)
_SLOTS = 33


@dataclass(frozen=True)
class Params:
    """What happens to each of K views of N images; every field is (K, N, …), on the CPU.

    A factor of 1 (brightness, contrast, saturation), a shift of 0 (hue) and a sigma of 0 (blur)
    leave a view as it is. `order[k, n]` is the order of the four jitter operations
    (0 brightness, 1 contrast, 2 saturation, 3 hue); `jitter` says whether they happen at all.
    """

    boxes: Tensor  # (K, N, 4) int64: top, left, height, width
    flip: Tensor  # (K, N) bool
    jitter: Tensor  # (K, N) bool
    factors: Tensor  # (K, N, 4) float64: brightness, contrast, saturation, hue
    order: Tensor  # (K, N, 4) int64
    grey: Tensor  # (K, N) bool
    sigma: Tensor  # (K, N) float64
    solarize: Tensor  # (K, N) bool

    def views(self, places: Sequence[int]) -> "Params":
        """The parameters of some of the views."""
        index = list(places)
        return Params(*(getattr(self, f.name)[index] for f in fields(self)))

    def flatten(self) -> "Params":
        """All views in one row: every field (K·N, …)."""
        return Params(*(getattr(self, f.name).flatten(0, 1) for f in fields(self)))

    def take(self, index: Tensor | slice) -> "Params":
        """Some of what the first dimension counts."""
        return Params(*(getattr(self, f.name)[index] for f in fields(self)))


def _mix(x: Tensor) -> Tensor:
    """One round of the splitmix64 finaliser; int64 products wrap, and `>>` is masked to be logical."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


_STEP = -0x61C8864680B583EB  # 2^64 / golden ratio, as int64


def uniform(seed: int, epoch: int, samples: Tensor, views: Tensor, slots: Tensor) -> Tensor:
    """Numbers in [0, 1) for coordinates that broadcast against each other, in float64 (53 bits)."""
    x = _mix(torch.tensor(seed, device=samples.device) + _STEP)
    for coordinate in (torch.tensor(epoch, device=samples.device), samples, views, slots):
        x = _mix((x ^ coordinate) + _STEP)
    return ((x >> 11) & 0x1FFFFFFFFFFFFF).double() * 2.0**-53


def numbers(plan: ViewPlan, samples: Tensor, *, seed: int, epoch: int) -> Tensor:
    """(K, N, slots): every random number of the K views of `samples`, before it is given a meaning."""
    views, slots = torch.arange(plan.k)[:, None, None], torch.arange(_SLOTS)[None, None, :]
    return uniform(seed, epoch, samples[None, :, None], views, slots)


def geometry(plan: ViewPlan, u: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes (K, N, 4) and flips (K, N) from `numbers`: all that cutting the views out of an image needs."""
    flip_p = torch.tensor([v.flip_p for v in plan.views], dtype=torch.float64)[:, None]
    return _boxes(plan.views, u, sizes), u[..., _FLIP] < flip_p


def draw(plan: ViewPlan, samples: Tensor, sizes: Tensor, *, seed: int, epoch: int) -> Params:
    """All parameters of the K views of `samples` (N,), whose images have `sizes` (N, 2) as height, width."""
    views = plan.views
    u = numbers(plan, samples, seed=seed, epoch=epoch)
    boxes, flip = geometry(plan, u, sizes)
    colours = [v.colour for v in views]

    def happens(slot: int, name: str) -> Tensor:
        p = torch.tensor([getattr(c, name) if c else 0.0 for c in colours], dtype=torch.float64)
        return u[..., slot] < p[:, None]

    jitter = happens(_JITTER, "jitter_p")
    blur_low, blur_high = _columns([c.blur_sigma if c else (0.0, 0.0) for c in colours])
    sigma = blur_low + u[..., _SIGMA] * (blur_high - blur_low)
    return Params(
        boxes=boxes,
        flip=flip,
        jitter=jitter,
        factors=_factors(views, u, jitter),
        order=_permutation(u[..., _ORDER]),
        grey=happens(_GREY, "grey_p"),
        sigma=sigma * happens(_BLUR, "blur_p"),
        solarize=happens(_SOLARIZE, "solarize_p"),
    )


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """(low, high) per view as two (K, 1) columns."""
    t = torch.tensor(pairs, dtype=torch.float64)
    return t[:, :1], t[:, 1:]


def _factors(views: Sequence[View], u: Tensor, jitter: Tensor) -> Tensor:
    """Brightness, contrast, saturation in [max(0, 1-f), 1+f] and hue in [-h, h]; neutral without jitter."""
    out = torch.empty(*u.shape[:2], 4, dtype=torch.float64)
    for i, (slot, name) in enumerate(((_B, "brightness"), (_C, "contrast"), (_S, "saturation"), (_H, "hue"))):
        strength = [getattr(v.colour, name) if v.colour else 0.0 for v in views]
        middle = 0.0 if name == "hue" else 1.0
        low, high = _columns(
            [(middle - f if name == "hue" else max(0.0, 1 - f), middle + f) for f in strength]
        )
        out[..., i] = torch.where(jitter, low + u[..., slot] * (high - low), middle)
    return out


def _permutation(u: Tensor) -> Tensor:
    """One of the 24 orders of four operations from one number."""
    rest = (u * 24).long()
    pool = torch.arange(4).expand(*u.shape, 4)
    picks = []
    for left in (4, 3, 2, 1):
        i = (rest % left)[..., None]
        rest = rest // left
        picks.append(pool.gather(-1, i))
        others = torch.arange(left - 1).expand(*u.shape, left - 1)
        pool = pool.gather(-1, others + (others >= i))  # what is left after the pick
    return torch.cat(picks, dim=-1)


def _boxes(views: Sequence[View], u: Tensor, sizes: Tensor) -> Tensor:
    """RandomResizedCrop's boxes: the first of ten tries that fits, else the largest allowed centre crop."""
    height, width = sizes[:, 0].double(), sizes[:, 1].double()  # (N,)
    low, high = (t[..., None] for t in _columns([v.crop_scale for v in views]))  # (K, 1, 1)
    r_low, r_high = (t[..., None] for t in _columns([v.crop_ratio for v in views]))
    area = (height * width)[:, None] * (low + u[..., :TRIES] * (high - low))  # (K, N, tries)
    log_ratio = r_low.log() + u[..., TRIES : 2 * TRIES] * (r_high.log() - r_low.log())
    ratio = log_ratio.exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= width[:, None]) & (h > 0) & (h <= height[:, None])
    first = fits.to(torch.uint8).argmax(dim=-1, keepdim=True)
    w, h = w.gather(-1, first)[..., 0], h.gather(-1, first)[..., 0]  # (K, N)
    top, left = (u[..., _TOP] * (height - h + 1)).floor(), (u[..., _LEFT] * (width - w + 1)).floor()

    r_low, r_high = r_low[..., 0], r_high[..., 0]  # (K, 1)
    centre_w = torch.minimum(width, (height * r_high).round())
    centre_h = torch.minimum(height, (width / r_low).round())
    found = fits.any(dim=-1)
    h, w = torch.where(found, h, centre_h), torch.where(found, w, centre_w)
    top = torch.where(found, top, ((height - h) / 2).floor())
    left = torch.where(found, left, ((width - w) / 2).floor())
    return torch.stack([top, left, h, w], dim=-1).long()


def to_device(small: Tensor, device: torch.device) -> Tensor:
    """Parameters from the CPU to where the pixels are; a GPU fetches them from pinned memory, and nobody waits."""
    if device.type == "cuda" and small.device.type == "cpu":
        small = small.pin_memory()
    return small.to(device, non_blocking=True)
