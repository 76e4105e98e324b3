"""Any loss of two views, over a pair graph."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ecpp.objective import pairs as graphs


def pairwise(
    loss: Callable[[Tensor, Tensor], Tensor],
    z: Tensor | Sequence[Tensor],
    pairs: Tensor | None = None,
    *,
    targets: Tensor | Sequence[Tensor] | None = None,
    symmetric: bool = True,
    pair_reduction: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """Adds up `loss(a, b)`, a scalar, over the pairs of a graph (Eq. 3 for any two-view loss).

    A pair i < j is called once, as loss(z[i], z[j]). With `symmetric=False` loss(z[j], z[i]) is added;
    with `targets` the two calls are loss(z[i], targets[j]) and loss(z[j], targets[i]), as in BYOL, and
    it is the loss that keeps the gradient from the targets. The graph decides which calls are made, so
    it lives on the CPU. `pair_reduction="mean"` divides by the number of pairs.
    """
    if pair_reduction not in ("sum", "mean"):
        raise ValueError(f"pair_reduction must be sum or mean, but is {pair_reduction!r}")
    k = len(z)
    if k < 2:
        raise ValueError(f"z holds K={k} view: there is no pair to learn from, so give at least 2 views")
    if targets is not None and len(targets) != k:
        raise ValueError(f"z holds {k} views, but targets {len(targets)}")
    if pairs is not None and pairs.device.type != "cpu":
        raise ValueError(
            f"the graph says which pairs to call, so it must be on the CPU, but is on {pairs.device}"
        )
    graph = graphs.resolve(pairs, k, torch.device("cpu"))
    chosen = [(i, j) for i, row in enumerate(graph.tolist()) for j in range(i + 1, k) if row[j]]
    others = z if targets is None else targets
    calls = [(z[i], others[j]) for i, j in chosen]
    if targets is not None or not symmetric:
        calls += [(z[j], others[i]) for i, j in chosen]
    total = torch.stack([loss(a, b) for a, b in calls]).sum()
    return total if pair_reduction == "sum" else total / len(chosen)
