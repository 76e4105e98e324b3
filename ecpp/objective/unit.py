"""Embeddings of length 1, in what precision, and what that does to their gradient."""

import math

import torch
from torch import Tensor

SHORTEST = 1e-12
"""An embedding shorter than this has no direction: its cosines are 0, and no gradient reaches it."""
_MAGNIFIES = 0.2  # below this temperature, and
_FEW = 128  # with fewer candidates, fp32 would miss 1e-6


def wide(*tensors: Tensor) -> torch.dtype:
    """The type of a loss: float64 if any of the tensors is, else fp32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def doubled(*tensors: Tensor) -> torch.dtype:
    """float64, which has twice the digits of fp32; fp32 if all tensors are of half precision.

    Differences of nearly equal cosines are then as exact as the tensors. Apple's GPUs have no float64.
    """
    half = all(t.dtype in (torch.bfloat16, torch.float16) for t in tensors)
    return torch.float32 if half or tensors[0].device.type == "mps" else torch.float64


def precision(tau: float, candidates: int, *tensors: Tensor) -> torch.dtype:
    """The type in which a contrastive loss of so many candidates is exact to 1e-6, and no slower one than that.

    1/tau magnifies the rounding of a cosine, and the sum over a few candidates does not average it out.
    """
    return doubled(*tensors) if tau < _MAGNIFIES or candidates < _FEW else wide(*tensors)


def unit(z: Tensor) -> tuple[Tensor, Tensor]:
    """`z` (…, D) divided by its length, and that length (…, 1), infinite where there is no direction."""
    length = z.norm(dim=-1, keepdim=True)
    # What overflows becomes NaN, so that training stops; as infinity it would pass for an embedding of no direction.
    length = length.where(length < math.inf, math.nan)
    length = length.where(~(length <= SHORTEST), math.inf)
    return z / length, length


def gradient(du: Tensor, u: Tensor, length: Tensor) -> Tensor:
    """From the gradient for the unit vectors `u` to that for `z`; `du` is overwritten."""
    along = (u * du).sum(dim=-1, keepdim=True)
    return du.addcmul_(u, along, value=-1).div_(length)
