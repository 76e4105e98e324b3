"""What a loss is given, or what is wrong with it."""

import math

from torch import Tensor

_SMALLEST = 1e-30  # a temperature whose inverse fp32 can hold


def check_embeddings(z: Tensor, name: str) -> None:
    """(K, N, D) of at least two views."""
    if not isinstance(z, Tensor) or z.ndim != 3 or 0 in z.shape or not z.is_floating_point():
        found = f"{tuple(z.shape)} of {z.dtype}" if isinstance(z, Tensor) else f"a {type(z).__name__}"
        raise ValueError(
            f"{name} must be a floating tensor (K views, N images, D), none of them 0, but is {found}"
        )
    if len(z) < 2:
        raise ValueError(
            f"{name} holds K={len(z)} view: there is no pair to learn from, so give at least 2 views"
        )


def check_tau(tau: float) -> None:
    """A number; those who do not check types may come with a tensor."""
    if isinstance(tau, Tensor):  # type: ignore[unreachable]
        raise ValueError("tau must be a number: it cannot be learned, so of a tensor give float(tau)")
    if not _SMALLEST <= tau < math.inf:
        raise ValueError(f"tau must be a number of at least {_SMALLEST}, but is {tau}")
