"""The slowly moving copy of a network that BYOL predicts."""

import copy
import math

import torch
from torch import Tensor, nn


class Momentum(nn.Module):
    """A copy of `online` that receives no gradient and follows it by `update`."""

    def __init__(self, online: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out

    @torch.no_grad()
    def update(self, online: nn.Module, tau: float) -> None:
        """target = tau · target + (1 - tau) · online; BatchNorm statistics are the target's own."""
        mine: list[Tensor] = list(self.network.parameters())
        if mine:  # nn.Identity has none
            torch._foreach_lerp_(mine, list(online.parameters()), 1 - tau)


def ema_tau(base: float, progress: float) -> float:
    """BYOL's schedule: from `base` at the start of training to 1 at its end (progress from 0 to 1)."""
    return 1 - (1 - base) * (math.cos(math.pi * progress) + 1) / 2
