"""Parameters applied to pixels: the K views of a batch, on the device of the images."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ecpp.views import colour, compiled
from ecpp.views.batch import ViewBatch
from ecpp.views.draws import Params, draw, to_device
from ecpp.views.geometry import crop_resize_flip, crop_resize_one, crop_resize_reduced
from ecpp.views.memory import fresh
from ecpp.views.plan import SMALL_IMAGE, ViewPlan

KERNELS = (
    "torch",
    "compiled",
)  # what works on colour; which one it is belongs to a run, as they differ in last bits

# A CPU renders so many bytes of float pixels at a time: what fits its cache costs a fraction of what does not.
_CHUNK = 1 << 20

# Some crops of one resolution by their place in a row of views (each with all its images): uint8, or floats in [0, 1].
_Crops = Callable[[Tensor], Tensor]


def render(
    plan: ViewPlan, images: Tensor, samples: Tensor, params: Params, *, kernel: str = "torch"
) -> ViewBatch:
    """The K views of equally large images: uint8 or float in [0, 1], (N, C, H, W)."""
    if images.ndim != 4 or len(images) != len(samples):
        raise ValueError(
            f"images must be (N, C, H, W) with one sample index each, but are {tuple(images.shape)} "
            f"with {len(samples)} indices"
        )
    if images.shape[1] != len(plan.mean) or not images.numel():
        raise ValueError(
            f"the plan is for {len(plan.mean)} channels, but the images are {tuple(images.shape)}"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"images must be uint8, or float in [0, 1], but are {images.dtype}")
    unit = 1 / 255 if images.dtype == torch.uint8 else 1.0

    def crops(size: int, places: Sequence[int]) -> _Crops:
        mine = params.views(places).flatten()
        boxes = to_device(mine.boxes, images.device)
        flips = to_device(mine.flip, images.device) if mine.flip.any() else None

        def some(index: Tensor) -> Tensor:
            which = images.index_select(0, index % len(images))
            flip = None if flips is None else flips[None, index]
            return crop_resize_flip(which, boxes[None, index], flip, size, unit=unit)[0]

        return some

    def uncut(places: Sequence[int]) -> compiled.Uncut:
        mine = params.views(places).flatten()
        return compiled.Uncut(images, mine.boxes, mine.flip)

    _check(kernel, images.device)
    sources = [uncut(places) if kernel == "compiled" else crops(size, places) for size, places in plan.groups]
    return _finish(plan, sources, samples, params, images.device)


def make(
    plan: ViewPlan, images: Tensor, samples: Tensor, *, seed: int, epoch: int, kernel: str = "torch"
) -> ViewBatch:
    """Draw and render the K views of a batch: the same `samples`, `seed` and `epoch` give the same views."""
    if images.ndim != 4 or not images.numel():
        raise ValueError(f"images must be (N, C, H, W) and not empty, but are {tuple(images.shape)}")
    size = torch.tensor(images.shape[2:]).expand(len(images), 2)
    params = draw(plan, samples.cpu(), size, seed=seed, epoch=epoch)
    return render(plan, images, samples, params, kernel=kernel)


def empty_crops(plan: ViewPlan, n: int) -> list[Tensor]:
    """Room for the crops of n images: uint8 (V, N, C, S, S) per resolution."""
    channels = len(plan.mean)
    return [
        torch.empty(len(places), n, channels, size, size, dtype=torch.uint8) for size, places in plan.groups
    ]


def crop_views(
    plan: ViewPlan, image: Tensor, size: Tensor, boxes: Tensor, flip: Tensor, out: Sequence[Tensor]
) -> None:
    """A worker's share: one image's crops, by boxes (K, 4) and flips (K,), into `out`, (V, C, S, S) per resolution.

    `image` may be smaller than the `size` (2,) that the boxes are for: then all of it was reduced.
    """
    reduced = image.shape[1:] != tuple(size.tolist())
    scale = [now / full for now, full in zip(image.shape[1:], size.tolist(), strict=True)]
    for (side, places), group in zip(plan.groups, out, strict=True):
        for place, view in zip(places, group, strict=True):
            if reduced:
                crop = crop_resize_reduced(image, boxes[place], scale, side)
            else:
                crop = crop_resize_one(image, boxes[place], side)
            view.copy_(crop.flip(-1) if flip[place] else crop)


def reduction(plan: ViewPlan, boxes: Tensor) -> int:
    """By which of 1, 2, 4 and 8 an image may be reduced before its crops (K, 4) are cut, so that none is enlarged."""
    sides = torch.tensor([view.size for view in plan.views])
    spare = float((boxes[:, 2:].amin(dim=1) / sides).min())
    return next((factor for factor in (8, 4, 2) if spare >= factor), 1)


def finish(
    plan: ViewPlan, crops: Sequence[Tensor], samples: Tensor, params: Params, *, kernel: str = "torch"
) -> ViewBatch:
    """The rest of the way for crops that workers made: uint8 (V, N, C, S, S) per resolution."""

    def source(whole: Tensor) -> _Crops | compiled.Uncut:
        row = whole.flatten(0, 1)  # (V·N, C, S, S)
        return compiled.Uncut(row) if kernel == "compiled" else lambda index: row.index_select(0, index)

    _check(kernel, crops[0].device)
    return _finish(plan, [source(x) for x in crops], samples, params, crops[0].device)


def _check(kernel: str, device: torch.device) -> None:
    if kernel not in KERNELS:
        raise ValueError(f"the colour kernel must be one of {', '.join(KERNELS)}, but is {kernel!r}")
    if kernel == "compiled" and device.type != "cpu":
        raise ValueError(
            f"the compiled colour kernel runs on CPUs only, but the images are on {device}: take 'torch'"
        )


def _finish(
    plan: ViewPlan,
    sources: Sequence[_Crops | compiled.Uncut],
    samples: Tensor,
    params: Params,
    device: torch.device,
) -> ViewBatch:
    """Colour and normalise the crops of each resolution."""
    n, channels = len(samples), len(plan.mean)
    groups = []
    for (size, places), source in zip(plan.groups, sources, strict=True):
        # Channels last in memory, as convolutions like it best.
        out = fresh(len(places) * n, size, size, channels, device=device)
        mine = params.views(places).flatten()
        for blur_kernel, views in _alike(plan, places):
            row = torch.cat([torch.arange(v * n, (v + 1) * n) for v in views])
            if isinstance(source, compiled.Uncut):
                compiled.Painter(plan, mine, row, blur_kernel, out)(source)
            else:
                _Painter(plan, mine, row, blur_kernel, out)(source)
        groups.append(out.permute(0, 3, 1, 2))  # (V·N, C, S, S)
    return ViewBatch(tuple(groups), tuple(places for _, places in plan.groups), samples)


class _Painter:
    """Jitter, grey, blur, solarize and normalise crops of one resolution into `out` (V·N, S, S, C), in PyTorch."""

    def __init__(
        self, plan: ViewPlan, params: Params, row: Tensor, blur_kernel: int | None, out: Tensor
    ) -> None:
        """`row` are the places of the crops; without `blur_kernel` they are only normalised."""
        self._plan, self._out, self._row = plan, out, row
        self._blur_kernel, self._recipe = blur_kernel or 0, None
        if blur_kernel is not None:
            self._recipe = colour.prepare(params.take(row), out.device)
            self._row = row[self._recipe.order]

    def __call__(self, crops: _Crops) -> None:
        """All of the row: on a GPU at once, on a CPU as many at a time as fit its cache."""
        out, row = self._out, to_device(self._row, self._out.device)
        step = max(1, _CHUNK // (4 * out[0].numel())) if out.device.type == "cpu" else len(row)
        with torch.autocast(out.device.type, enabled=False):  # bf16 keeps less than the eight bits of a pixel
            for start in range(0, len(row), step):
                index = row[start : start + step]
                x = crops(index)
                if x.dtype == torch.uint8:
                    x = x.float().mul_(1 / 255)
                if self._recipe is not None:
                    colour.apply_(x, self._recipe, start, self._blur_kernel)
                _store(self._plan, x, index, out)


def _store(plan: ViewPlan, x: Tensor, index: Tensor, out: Tensor) -> None:
    """Crops (B, C, S, S), normalised, into their places in `out` (…, S, S, C)."""
    if out.device.type == "cpu" and x.shape[-1] > SMALL_IMAGE:  # large ones one by one, without another copy
        for place, image in zip(index.tolist(), x, strict=True):
            _normalise(plan, image, out[place])
    else:
        y = torch.empty(len(x), *out.shape[1:], device=out.device)
        out.index_copy_(0, index, _normalise(plan, x, y))


def _normalise(plan: ViewPlan, x: Tensor, out: Tensor) -> Tensor:
    """(…, C, S, S) in [0, 1] to `out` (…, S, S, C), in one pass."""
    for c, (mean, std) in enumerate(zip(plan.mean, plan.std, strict=True)):
        torch.add(torch.tensor(-mean / std), x.select(-3, c), alpha=1 / std, out=out.select(-1, c))
    return out


def _alike(plan: ViewPlan, places: Sequence[int]) -> list[tuple[int | None, list[int]]]:
    """Which of some views are worked on together: (their blur kernel, or None without colour; their positions)."""
    kinds: dict[int | None, list[int]] = {}
    for position, i in enumerate(places):
        look = plan.views[i].colour
        kinds.setdefault(look.blur_kernel if look else None, []).append(position)
    return list(kinds.items())
