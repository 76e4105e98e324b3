"""Crop, resize and flip: a whole batch at once, or one image of any size."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_matrices(start: Tensor, length: Tensor, out: int, full: int, *, unit: float = 1.0) -> Tensor:
    """Antialiased bilinear resizing of [start, start + length) to `out` pixels as (…, out, full) matrices.

    The same triangle filter as torch's `interpolate(mode="bilinear", antialias=True)` on the cropped
    pixels: as wide as the step between outputs, at least one pixel, cut off and renormalised at the edges.
    Every row sums up to `unit`.
    """
    start, length = start[..., None, None].float(), length[..., None, None].float()
    step = length / out
    sharp = 1 / step.clamp(min=1)  # distances are counted in reaches of the filter
    centre = (torch.arange(out, device=start.device)[:, None] + 0.5) * (
        step * sharp
    )  # (…, out, 1), inside the crop
    pixel = torch.arange(full, device=start.device) - start + 0.5  # (…, 1, full)
    outside = (pixel < 0) | (pixel > length)
    weight = (pixel * sharp).masked_fill_(outside, math.inf) - centre
    weight = weight.abs_().neg_().add_(1).clamp_(min=0)
    return weight.mul_(unit / weight.sum(dim=-1, keepdim=True))


def crop_resize_flip(
    images: Tensor, boxes: Tensor, flip: Tensor | None, size: int, *, unit: float = 1.0
) -> Tensor:
    """V crops of each of N equally large images: (N, C, H, W) and (V, N, 4) to float (V, N, C, size, size).

    Values are those of `images` times `unit`. Two products with interpolation matrices; a flip is a mirrored one.
    """
    n, c, height, width = images.shape
    v = len(boxes)
    top, left, h, w = boxes.permute(2, 1, 0).contiguous()  # each (N, V)
    rows = resize_matrices(top, h, size, height, unit=unit)  # (N, V, size, H)
    columns = resize_matrices(left, w, size, width)  # (N, V, size, W)
    if flip is not None:
        columns = torch.where(flip.T.contiguous()[..., None, None], columns.flip(2), columns)
    x = images.permute(0, 2, 1, 3).reshape(n, height, c * width).to(rows.dtype)
    x = torch.bmm(rows.view(n, v * size, height), x)  # (N, V·size, C·W)
    x = torch.bmm(x.view(n * v, size * c, width), columns.view(n * v, size, width).transpose(1, 2))
    return x.view(n, v, size, c, size).permute(1, 0, 3, 2, 4)


def crop_resize_one(image: Tensor, box: Tensor, size: int) -> Tensor:
    """One crop of one uint8 image (C, H, W) of any size, resized to uint8 (C, size, size)."""
    top, left, h, w = box.tolist()
    crop = image[None, :, top : top + h, left : left + w]
    return F.interpolate(crop, (size, size), mode="bilinear", antialias=True)[0]


def crop_resize_reduced(image: Tensor, box: Tensor, scale: Sequence[float], size: int) -> Tensor:
    """One crop of an image that was decoded smaller by `scale` (height, width): its box falls between the pixels."""
    from PIL import Image

    channels, (top, left, h, w) = len(image), box.tolist()
    corners = (left * scale[1], top * scale[0], (left + w) * scale[1], (top + h) * scale[0])
    pixels = image.permute(1, 2, 0).contiguous().numpy()  # (H, W, C)
    whole = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    crop = whole.resize((size, size), Image.Resampling.BILINEAR, box=corners)
    resized = torch.frombuffer(bytearray(crop.tobytes()), dtype=torch.uint8)
    return resized.view(size, size, channels).permute(2, 0, 1)
