"""Which views teach which: Table 1 of the paper as symmetric boolean K×K matrices with an empty diagonal."""

from collections.abc import Callable

import torch
from torch import Tensor


def _check_k(k: int) -> None:
    if k < 2:
        raise ValueError(f"a pair needs two views, but K={k}: take K >= 2")


def full(k: int) -> Tensor:
    """Every pair of views, K(K-1)/2 of them (Table 1, "full graph" and ECPP; Eq. 3)."""
    _check_k(k)
    return ~torch.eye(k, dtype=torch.bool)


def core(k: int) -> Tensor:
    """The first view with each other view, K-1 pairs (Table 1, "core view")."""
    return multi_crop(k, n_large=1)


def multi_crop(k: int, n_large: int = 2) -> Tensor:
    """Every pair that holds one of the first `n_large` views; 2K-3 pairs for two (Table 1, "multi-crop")."""
    _check_k(k)
    if not 1 <= n_large <= k:
        raise ValueError(f"n_large must be between 1 and K={k}, but is {n_large}")
    large = torch.arange(k) < n_large
    return (large[:, None] | large[None, :]) & full(k)


GRAPHS: dict[str, Callable[[int], Tensor]] = {"full": full, "core": core, "multi-crop": multi_crop}


def count(pairs: Tensor) -> int:
    """The number of unordered pairs in a graph."""
    return int(pairs.sum()) // 2


def resolve(pairs: Tensor | None, k: int, device: torch.device) -> Tensor:
    """`pairs` (or the full graph for None), checked, on `device`."""
    if pairs is None:
        return ~torch.eye(k, dtype=torch.bool, device=device)
    if not isinstance(pairs, Tensor) or pairs.shape != (k, k) or pairs.dtype != torch.bool:
        got = f"{tuple(pairs.shape)} of {pairs.dtype}" if isinstance(pairs, Tensor) else repr(pairs)
        raise ValueError(f"pairs must be a boolean ({k}, {k}) matrix, one row per view, but is {got}")
    # The values are looked at on the CPU only: reading them from a GPU would stop it at every step.
    if pairs.device.type == "cpu":
        if pairs.diagonal().any() or not torch.equal(pairs, pairs.T):
            raise ValueError("pairs must be symmetric with an empty diagonal: no view is paired with itself")
        if not pairs.any():
            raise ValueError("pairs holds no pair at all: nothing could be learned from it")
    return pairs.to(device, non_blocking=True)
