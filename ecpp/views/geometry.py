"""Crop, resize and flip: a whole batch at once, or one image of any size."""

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_matrices(start: Tensor, length: Tensor, out: int, full: int) -> Tensor:
    """Antialiased bilinear resizing of [start, start + length) to `out` pixels as (…, out, full) matrices.

    The same triangle filter as torch's `interpolate(mode="bilinear", antialias=True)` on the cropped
    pixels: as wide as the step between outputs, at least one pixel, cut off and renormalised at the edges.
    """
    start, length = start[..., None, None].float(), length[..., None, None].float()
    step = length / out
    reach = step.clamp(min=1)
    centre = (torch.arange(out, device=start.device)[:, None] + 0.5) * step  # (…, out, 1), inside the crop
    pixel = torch.arange(full, device=start.device) - start + 0.5  # (…, 1, full)
    weight = (1 - (pixel - centre).abs() / reach).clamp(min=0)
    weight = weight * ((pixel > 0) & (pixel < length))
    return weight / weight.sum(dim=-1, keepdim=True)


def crop_resize_flip(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """V crops of each of N equally large images: (N, C, H, W) and (V, N, 4) to float (V, N, C, size, size).

    Values keep the scale of `images`. Two products with interpolation matrices; a flip is a mirrored one.
    """
    n, c, height, width = images.shape
    v = len(boxes)
    top, left, h, w = boxes.permute(2, 1, 0).contiguous()  # each (N, V)
    rows = resize_matrices(top, h, size, height)  # (N, V, size, H)
    columns = resize_matrices(left, w, size, width)  # (N, V, size, W)
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
