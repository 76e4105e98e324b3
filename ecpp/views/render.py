"""Parameters applied to pixels: the K views of a batch, on the device of the images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ecpp.views import colour
from ecpp.views.batch import ViewBatch
from ecpp.views.draws import Params, draw
from ecpp.views.geometry import crop_resize_flip, crop_resize_one
from ecpp.views.plan import ViewPlan


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
    crops = []
    for size, places in plan.groups:
        mine = params.views(places)
        boxes = mine.boxes.to(images.device, non_blocking=True)
        flip = mine.flip.to(images.device, non_blocking=True)
        crops.append(crop_resize_flip(images, boxes, flip, size).mul_(unit))
    return _finish(plan, crops, samples, params)


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
    return _finish(plan, [c.float().mul_(1 / 255) for c in crops], samples, params)


def _finish(plan: ViewPlan, crops: Sequence[Tensor], samples: Tensor, params: Params) -> ViewBatch:
    """Colour and normalise float crops in [0, 1], (V, N, C, S, S) per resolution."""
    groups = []
    for (_, places), x in zip(plan.groups, crops, strict=True):
        colours = [plan.views[i].colour for i in places]
        for kernel in {c.blur_kernel: None for c in colours if c}:
            at = [v for v, c in enumerate(colours) if c and c.blur_kernel == kernel]
            here = torch.tensor(at).to(x.device, non_blocking=True)
            chosen = x[here]  # (V', N, C, S, S)
            mine = params.views([places[v] for v in at]).flatten()
            x[here] = colour.apply(chosen.flatten(0, 1), mine, kernel).view_as(chosen)
        for channel, (mean, std) in enumerate(zip(plan.mean, plan.std, strict=True)):
            x[:, :, channel].sub_(mean).div_(std)
        # (V·N, C, S, S) with the channels last in memory, as convolutions like it best.
        groups.append(x.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2))
    return ViewBatch(tuple(groups), tuple(places for _, places in plan.groups), samples)
