"""Parameters applied to pixels: the K views of a batch, on the device of the images."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ecpp.views import colour
from ecpp.views.batch import ViewBatch
from ecpp.views.draws import Params, draw
from ecpp.views.geometry import crop_resize_flip, crop_resize_one
from ecpp.views.plan import SMALL_IMAGE, ViewPlan

# A CPU renders so many bytes of float pixels at a time: what fits its cache costs a fraction of what does not.
_CHUNK = 1 << 20

# Some crops of one resolution, by their place in a row of views (each with all its images), as floats in [0, 1].
_Crops = Callable[[Tensor], Tensor]


def render(plan: ViewPlan, images: Tensor, samples: Tensor, params: Params) -> ViewBatch:
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
        boxes, flip = (t.to(images.device, non_blocking=True) for t in (mine.boxes, mine.flip))

        def some(index: Tensor) -> Tensor:
            which = images.index_select(0, index % len(images))
            return crop_resize_flip(which, boxes[None, index], flip[None, index], size)[0].mul_(unit)

        return some

    return _finish(plan, [crops(*group) for group in plan.groups], samples, params, images.device)


def make(plan: ViewPlan, images: Tensor, samples: Tensor, *, seed: int, epoch: int) -> ViewBatch:
    """Draw and render the K views of a batch: the same `samples`, `seed` and `epoch` give the same views."""
    if images.ndim != 4 or not images.numel():
        raise ValueError(f"images must be (N, C, H, W) and not empty, but are {tuple(images.shape)}")
    size = torch.tensor(images.shape[2:]).expand(len(images), 2)
    return render(plan, images, samples, draw(plan, samples.cpu(), size, seed=seed, epoch=epoch))


def crop_views(plan: ViewPlan, image: Tensor, params: Params) -> list[Tensor]:
    """One image's crops as uint8, (V, C, S, S) per resolution: a worker's share of the rendering."""
    groups = []
    for size, places in plan.groups:
        views = []
        for place in places:
            view = crop_resize_one(image, params.boxes[place, 0], size)
            views.append(view.flip(-1) if params.flip[place, 0] else view)
        groups.append(torch.stack(views))
    return groups


def finish(plan: ViewPlan, crops: Sequence[Tensor], samples: Tensor, params: Params) -> ViewBatch:
    """The rest of the way for crops that workers made: uint8 (V, N, C, S, S) per resolution."""

    def load(whole: Tensor) -> _Crops:
        row = whole.flatten(0, 1)  # (V·N, C, S, S)
        return lambda index: row.index_select(0, index).float().mul_(1 / 255)

    return _finish(plan, [load(x) for x in crops], samples, params, crops[0].device)


def _finish(
    plan: ViewPlan, crops: Sequence[_Crops], samples: Tensor, params: Params, device: torch.device
) -> ViewBatch:
    """Colour and normalise the crops of each resolution."""
    scale = 1 / torch.tensor(plan.std)[:, None, None]
    shift = -torch.tensor(plan.mean)[:, None, None] * scale
    scale, shift = scale.to(device, non_blocking=True), shift.to(device, non_blocking=True)
    n, channels = len(samples), len(plan.mean)
    groups = []
    for (size, places), some in zip(plan.groups, crops, strict=True):
        # Channels last in memory, as convolutions like it best.
        out = torch.empty(len(places) * n, size, size, channels, device=device)
        step = max(1, _CHUNK // (4 * channels * size**2)) if device.type == "cpu" else len(out)
        mine = params.views(places).flatten()
        for kernel, views in _alike(plan, places):
            row = torch.cat([torch.arange(v * n, (v + 1) * n) for v in views])
            recipe = None
            if kernel is not None:
                recipe = colour.prepare(mine.take(row), device)
                row = row[recipe.order]
            row = row.to(device, non_blocking=True)
            for start in range(0, len(row), step):
                index = row[start : start + step]
                x = some(index)
                if recipe is not None and kernel is not None:
                    colour.apply_(x, recipe, start, kernel)
                _store(out, index, x.mul_(scale).add_(shift))
        groups.append(out.permute(0, 3, 1, 2))  # (V·N, C, S, S)
    return ViewBatch(tuple(groups), tuple(places for _, places in plan.groups), samples)


def _store(out: Tensor, index: Tensor, x: Tensor) -> None:
    """Crops (B, C, S, S) into their places in `out` (…, S, S, C)."""
    if out.device.type == "cpu" and x.shape[-1] > SMALL_IMAGE:  # large ones one by one, without another copy
        for place, image in zip(index.tolist(), x, strict=True):
            out[place] = image.permute(1, 2, 0)
    else:
        out.index_copy_(0, index, x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1))


def _alike(plan: ViewPlan, places: Sequence[int]) -> list[tuple[int | None, list[int]]]:
    """Which of some views are worked on together: (their blur kernel, or None without colour; their positions)."""
    kinds: dict[int | None, list[int]] = {}
    for position, i in enumerate(places):
        look = plan.views[i].colour
        kinds.setdefault(look.blur_kernel if look else None, []).append(position)
    return list(kinds.items())
