"""What the K views of an image are, and what they cost: a view plan is data."""

import math
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Colour:
    """The SimCLR colour operations of one view and how often each happens (spec: App. A, in this order)."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    jitter_p: float = 0.8
    grey_p: float = 0.2
    blur_p: float = 0.0
    blur_kernel: int = 23
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_p: float = 0.0


@dataclass(frozen=True)
class Look:
    """What a family of data sets shares: the colour operations and the normalisation."""

    colour: Colour
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of_channels(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "Look":
        """With this normalisation. Only three channels are colours, with saturation, hue and grey."""
        colour = self.colour if len(mean) == 3 else replace(self.colour, saturation=0.0, hue=0.0, grey_p=0.0)
        return Look(colour, mean, std)


CIFAR = Look(Colour(0.4, 0.4, 0.4, 0.1), mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
IMAGENET = Look(
    Colour(0.8, 0.8, 0.8, 0.2, blur_p=0.5, solarize_p=0.1),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
LOOKS = {"cifar": CIFAR, "imagenet": IMAGENET}
SMALL_IMAGE = 64  # up to this side images are treated as CIFAR's, above as ImageNet's


@dataclass(frozen=True)
class View:
    """One view: a random resized crop, then (unless it is crop-only) a flip and colour."""

    size: int
    crop_scale: tuple[float, float] = (0.2, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_p: float = 0.5
    colour: Colour | None = None

    def __post_init__(self) -> None:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise ValueError(f"crop_scale must be 0 < low <= high <= 1, but is {self.crop_scale}")
        if not isinstance(self.size, int):
            raise ValueError(f"the size of a view is a whole number of pixels, but is {self.size!r}")
        if self.size < 1:
            raise ValueError(f"a view must be at least one pixel wide, but its size is {self.size}")
        if self.colour and self.colour.blur_p > 0 and self.size <= self.colour.blur_kernel // 2:
            raise ValueError(
                f"a blur kernel of {self.colour.blur_kernel} reflects {self.colour.blur_kernel // 2} pixels at "
                f"each edge, more than a view of {self.size} px has: take larger views or a smaller kernel"
            )

    @property
    def kind(self) -> str:
        return "SimCLR" if self.colour else "crop-only"


@dataclass(frozen=True)
class ViewPlan:
    """The K views of every image, in order, and how they are normalised."""

    views: tuple[View, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def k(self) -> int:
        return len(self.views)

    @cached_property
    def groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(size, indices of its views) for each resolution, the largest first."""
        sizes = sorted({v.size for v in self.views}, reverse=True)
        return tuple((s, tuple(i for i, v in enumerate(self.views) if v.size == s)) for s in sizes)

    @property
    def large(self) -> int:
        """The side of the largest views."""
        return self.groups[0][0]

    @property
    def pixels_per_image(self) -> int:
        """Of all its views, each channel counted once."""
        return sum(v.size**2 for v in self.views)

    @property
    def pairs_per_image(self) -> int:
        """K(K-1)/2, the full graph."""
        return math.comb(self.k, 2)

    @property
    def relative_compute(self) -> float:
        """The encoder's work per image, in passes of a large view: pixels over pixels (Table 1)."""
        return self.pixels_per_image / self.large**2


def plan(
    k: int,
    *,
    large: int,
    small: int | None = None,
    n_simclr: int | None = None,
    look: Look | None = None,
    crop_scale: tuple[float, float] = (0.2, 1.0),
    small_crop_scale: tuple[float, float] | None = None,
) -> ViewPlan:
    """The paper's K views: two large SimCLR views, then small ones; about half of all are crop-only.

    `small=None` keeps every view at `large`. `n_simclr` is the number of SimCLR views, at least the
    two large ones; None takes max(2, ceil(K/2)). `look=None` follows the size: `CIFAR` up to 64 px,
    `IMAGENET` above. `small_crop_scale` is the crop scale of the crop-only views, if another.
    """
    if k < 2:
        raise ValueError(f"ECPP pairs views, so it needs K >= 2 of them, but K={k}")
    if n_simclr is None:
        n_simclr = max(2, math.ceil(k / 2))
    if not 2 <= n_simclr <= k:
        raise ValueError(f"n_simclr must be between 2 (the large views) and K={k}, but is {n_simclr}")
    small = large if small is None else small
    if small > large:
        raise ValueError(f"small views ({small} px) are larger than the large ones ({large} px): swap them")
    look = look or (CIFAR if large <= SMALL_IMAGE else IMAGENET)
    simclr = [View(large if i < 2 else small, crop_scale, colour=look.colour) for i in range(n_simclr)]
    crop_only = View(small, small_crop_scale or crop_scale, flip_p=0.0)
    return ViewPlan((*simclr, *[crop_only] * (k - n_simclr)), look.mean, look.std)
