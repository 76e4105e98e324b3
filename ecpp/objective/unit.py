"""Embeddings, checked and of length 1, in what precision, and what that does to their gradient."""

import math

import torch
from torch import Tensor

SHORTEST = 1e-12
"""An embedding shorter than this has no direction: its cosines are 0, and no gradient reaches it."""


def check_embeddings(z: Tensor, name: str) -> None:
    if not isinstance(z, Tensor) or z.ndim != 3 or 0 in z.shape or not z.is_floating_point():
        found = f"{tuple(z.shape)} of {z.dtype}" if isinstance(z, Tensor) else f"a {type(z).__name__}"
        raise ValueError(
            f"{name} must be a floating tensor (K views, N images, D), none of them 0, but is {found}"
        )


def wide(*tensors: Tensor) -> torch.dtype:
    """The type of a loss: float64 if any of the tensors is, else fp32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def doubled(*tensors: Tensor) -> torch.dtype:
    """The type with twice the digits of the finest of the tensors: fp32 for half precision, else float64.

    Differences of nearly equal cosines are then as exact as the tensors. Apple's GPUs have no float64.
    """
    half = all(t.dtype in (torch.bfloat16, torch.float16) for t in tensors)
    return torch.float32 if half or tensors[0].device.type == "mps" else torch.float64


def unit(z: Tensor) -> tuple[Tensor, Tensor]:
    """`z` (…, D) divided by its length, and that length (…, 1), infinite where there is no direction."""
    length = z.norm(dim=-1, keepdim=True)
    length = length.where(length < math.inf, math.nan)  # too long to be measured: no number, rather than none
    length = length.where(~(length <= SHORTEST), math.inf)
    return z / length, length


def gradient(du: Tensor, u: Tensor, length: Tensor) -> Tensor:
    """From the gradient for the unit vectors `u` to that for `z`; `du` is overwritten."""
    along = (u * du).sum(dim=-1, keepdim=True)
    return du.addcmul_(u, along, value=-1).div_(length)
