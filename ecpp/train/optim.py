"""Optimizers and the learning rate of every step (spec: App. A; lr = 0.4·batch/256, warm-up, cosine)."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Peak learning rate per 256 images: the paper's for SGD, those usual in the field for the others.
BASE_LR = {"sgd": 0.4, "lars": 0.3, "adamw": 0.001}


def default_lr(optimizer: str, batch_size: int, *, sgd: float = BASE_LR["sgd"]) -> float:
    """The linear rule; it knows nothing of K, as in the paper. `sgd` is a method's own rate for SGD.

    The other optimizers rescale steps, so that the size of a method's gradient does not matter to them.
    """
    return (sgd if optimizer == "sgd" else BASE_LR[optimizer]) * batch_size / 256


def default_warmup(epochs: int) -> float:
    """Epochs of warm-up: a tenth of all, at most ten."""
    return min(10.0, epochs / 10)


def learning_rate(step: int, *, peak: float, total: int, warmup: int = 0, schedule: str = "cosine") -> float:
    """The learning rate of a step: linear up to `peak` over `warmup` steps, then cosine to 0 at `total`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: weights, and what does not decay (biases and normalisation, everything of one dimension)."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def build_optimizer(
    name: str, model: nn.Module, *, lr: float, momentum: float = 0.9, weight_decay: float = 1e-4
) -> torch.optim.Optimizer:
    """`sgd` (without Nesterov), `adamw` or `lars`.

    All leave weights and state as they are while their `found_inf` is 1: PyTorch's fused ones are told so by
    gradient scalers, and a guard tells them the same without waiting for the device.
    """
    groups = parameter_groups(model, weight_decay)
    if name == "sgd":
        sgd = torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=True)
        for p in (p for group in groups for p in group["params"] if momentum):
            # Its own first momentum is uninitialised memory if that step is skipped.
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return sgd
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, fused=True)
    if name == "lars":
        return LARS(groups, lr=lr, momentum=momentum)
    raise ValueError(f"optimizer must be sgd, adamw or lars, but is {name!r}")


class LARS(torch.optim.Optimizer):
    """SGD with momentum whose step for each weight tensor is scaled to the tensor's own norm.

    What does not decay (biases, normalisation) is not scaled either, as in SimCLR and BYOL.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
        return loss

    def _update(self, p: Tensor, group: dict[str, Any]) -> None:
        update = p.grad.add(p, alpha=group["weight_decay"]) if p.grad is not None else torch.zeros_like(p)
        if p.ndim > 1:
            weight, size = p.norm(), update.norm()
            ratio = group["trust"] * weight / size
            update = update * torch.where((weight > 0) & (size > 0), ratio, 1.0)
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        momentum = state["momentum"] * group["momentum"] + update
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if found_inf is None:
            state["momentum"].copy_(momentum)
            p.add_(momentum, alpha=-group["lr"])
            return
        skip = found_inf.bool()
        state["momentum"].copy_(torch.where(skip, state["momentum"], momentum))
        p.copy_(torch.where(skip, p, p.add(momentum, alpha=-group["lr"])))
