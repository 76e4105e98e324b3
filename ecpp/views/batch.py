"""The views of one batch, one tensor per resolution."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ViewBatch:
    """`groups[g]` is (V·N, C, S, S), view-major; `order[g]` are the V places of its views among the K.

    The first group has the largest size.

    `samples` are the N indices of the images in their source.
    """

    groups: tuple[Tensor, ...]
    order: tuple[tuple[int, ...], ...]
    samples: Tensor

    @property
    def k(self) -> int:
        return sum(len(places) for places in self.order)

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def large(self) -> tuple[int, ...]:
        """The places of the views of the largest size, in the order of the plan."""
        return tuple(sorted(self.order[0]))

    def stack(self, parts: list[Tensor]) -> Tensor:
        """Outputs (V·N, …) of all groups as one (K, N, …), or of the first as (L, N, …), in the plan's order."""
        joined = torch.cat(parts)  # (views·N, …), in group order
        joined = joined.view(-1, self.n, *joined.shape[1:])
        places = [i for group in self.order for i in group][: len(joined)]
        if places == sorted(places):
            return joined
        inverse = sorted(range(len(places)), key=places.__getitem__)
        return torch.stack([joined[i] for i in inverse])

    def view(self, k: int) -> Tensor:
        """View k of every image, (N, C, S, S)."""
        for images, places in zip(self.groups, self.order, strict=True):
            if k in places:
                return images[places.index(k) * self.n :][: self.n]
        raise ValueError(f"there is no view {k} in a batch of K={self.k} views")
