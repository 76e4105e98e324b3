"""Linear layers by SGD on frozen features (spec: App. A), several settings at once over the same batches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 8192  # that are judged at a time


@dataclass(frozen=True)
class LinearProtocol:
    """The constants of the probe; these are the paper's for CIFAR-10."""

    lr: float = 0.25
    momentum: float = 0.9
    weight_decay: float = 0.0
    epochs: int = 100
    batch_size: int = 256

    def describe(self, on: str = "frozen un-augmented features") -> str:
        return (
            f"linear layer by SGD, {self.epochs} epochs, batch {self.batch_size}, lr {self.lr:.4g} cosine to 0, "
            f"momentum {self.momentum}, weight decay {self.weight_decay}, on {on}; last epoch"
        )


IMAGENET_PROTOCOL = LinearProtocol(lr=0.3, momentum=0.995, weight_decay=1e-6)


class Probes:
    """S linear layers, one for each (learning rate, weight decay), that see the same batches.

    The gradient of a softmax layer is two products, so it is written out; all S layers share them. With `bf16`
    the factors of the products are rounded, but neither the weights nor the momentum.
    """

    def __init__(
        self,
        features: Tensor,
        classes: int,
        settings: Sequence[tuple[float, float]],
        *,
        momentum: float,
        generator: torch.Generator,
        bf16: bool = False,
    ) -> None:
        self.d, self.classes, self.momentum, self.bf16 = features.shape[1], classes, momentum, bf16
        start = torch.randn(classes, self.d + 1, generator=generator, dtype=features.dtype).mul_(0.01)
        start[:, -1] = 0  # the last column is the bias
        self.w = start.to(features.device).repeat(len(settings), 1)  # (S·C, D + 1)
        self.velocity = torch.zeros_like(self.w)
        own = torch.tensor(settings, dtype=features.dtype).repeat_interleave(classes, dim=0)  # (S·C, 2)
        lr, decay = own.to(features.device).unsqueeze(-1).unbind(dim=1)  # (S·C, 1) each
        self.lr, self.decay = -lr, decay if decay.any() else None

    @torch.no_grad()
    def step(self, rows: Tensor, labels: Tensor, factor: float) -> None:
        """One step of SGD on a batch (B, D), at `factor` times each layer's learning rate."""
        d, share = self.d, 1 / len(rows)
        truth = rows.new_zeros(self.classes, len(rows)).scatter_(0, labels[None], 1)
        if self.bf16:
            rows = rows.bfloat16()
        error = self._logits(rows).view(-1, self.classes, len(rows)).softmax(dim=1).sub_(truth).flatten(0, 1)
        weight, bias = self.velocity[:, :d], self.velocity[:, d]
        if self.bf16:
            weight.mul_(self.momentum).add_(error.bfloat16() @ rows, alpha=share)
        else:
            weight.addmm_(error, rows, beta=self.momentum, alpha=share)
        bias.mul_(self.momentum).add_(error.sum(dim=1), alpha=share)
        if self.decay is not None:
            self.velocity.addcmul_(self.w, self.decay)
        self.w.addcmul_(self.velocity, self.lr, value=factor)

    def _logits(self, rows: Tensor) -> Tensor:
        """(S·C, B)"""
        if self.bf16:
            return (self.w[:, : self.d].bfloat16() @ rows.T).float().add_(self.w[:, self.d :])
        return torch.addmm(self.w[:, self.d :], self.w[:, : self.d], rows.T)

    @torch.no_grad()
    def logits(self, rows: Tensor, setting: int = 0) -> Tensor:
        """What one of the layers says of features (n, D), as (n, C)."""
        w = self.w[setting * self.classes :][: self.classes]
        return torch.cat(
            [torch.addmm(w[:, -1], x.to(w.device), w[:, :-1].T) for x in torch.split(rows, ROWS)]
        )

    @torch.no_grad()
    def accuracies(self, rows: Tensor, labels: Tensor) -> Tensor:
        """(S,) shares of right answers; 0 for a layer that diverged."""
        right = torch.zeros(len(self.w) // self.classes, device=self.w.device, dtype=torch.int64)
        for i in range(0, len(rows), ROWS):
            x, y = rows[i : i + ROWS].to(self.w.device), labels[i : i + ROWS].to(self.w.device)
            logits = torch.addmm(self.w[:, self.d :], self.w[:, : self.d], x.T)
            right += (logits.view(len(right), self.classes, -1).argmax(dim=1) == y).sum(dim=1)
        finite = self.w.view(len(right), -1).isfinite().all(dim=1)
        return right.double() / len(rows) * finite


def fit_linear(
    train: Tensor,
    labels: Tensor,
    *,
    classes: int,
    protocol: LinearProtocol | None = None,
    settings: Sequence[tuple[float, float]] | None = None,
    rows: Tensor | None = None,
    seed: int = 0,
    bf16: bool = False,
    after_epoch: Callable[[int, Probes], None] = lambda epoch, probes: None,
) -> Probes:
    """Train one layer by the protocol, or one for each of `settings` (learning rate, weight decay), all at once.

    `rows` are the places of the features to learn from; None takes all.
    """
    p = protocol or LinearProtocol()
    rows = torch.arange(len(train)) if rows is None else rows
    g = torch.Generator().manual_seed(seed)
    settings = settings or [(p.lr, p.weight_decay)]
    probes = Probes(train, classes, settings, momentum=p.momentum, generator=g, bf16=bf16)
    batch = min(p.batch_size, len(rows))
    total, step = math.ceil(len(rows) / batch) * p.epochs, 0
    for epoch in range(1, p.epochs + 1):
        for index in torch.split(rows[torch.randperm(len(rows), generator=g)].to(train.device), batch):
            # Row by row as they are needed: they stay in the cache, and a file of features is never in memory whole.
            probes.step(train.index_select(0, index), labels[index], cosine(step, total))
            step += 1
        after_epoch(epoch, probes)
    return probes


def cosine(step: int, total: int) -> float:
    """From 1 at the first step towards 0 after the last."""
    return 0.5 * (1 + math.cos(math.pi * step / total))
