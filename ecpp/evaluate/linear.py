"""The linear probe of the paper: one linear layer by SGD on frozen features (spec: App. A)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearProtocol:
    """The constants of the probe; these are the paper's for CIFAR-10."""

    lr: float = 0.25
    momentum: float = 0.9
    weight_decay: float = 0.0
    epochs: int = 100
    batch_size: int = 256

    def describe(self) -> str:
        return (
            f"linear layer by SGD, {self.epochs} epochs, batch {self.batch_size}, lr {self.lr} cosine to 0, "
            f"momentum {self.momentum}, weight decay {self.weight_decay}, on frozen un-augmented features; last epoch"
        )


IMAGENET_PROTOCOL = LinearProtocol(lr=0.3, momentum=0.995, weight_decay=1e-6)


def linear_probe(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    classes: int,
    protocol: LinearProtocol | None = None,
    seed: int = 0,
) -> float:
    """Top-1 accuracy on the test features after the last epoch."""
    w = fit_linear(train, train_labels, classes=classes, protocol=protocol, seed=seed)
    predicted = (torch.cat([test, torch.ones(len(test), 1)], dim=1) @ w).argmax(dim=1)
    return float((predicted == test_labels).float().mean())


@torch.no_grad()
def fit_linear(
    train: Tensor,
    train_labels: Tensor,
    *,
    classes: int,
    protocol: LinearProtocol | None = None,
    seed: int = 0,
) -> Tensor:
    """The probe's weights after the last epoch, (D + 1, classes); the last row is the bias.

    The gradient of a softmax layer is two products, so it is written out: a step costs little more than them.
    """
    protocol = protocol or LinearProtocol()
    g = torch.Generator().manual_seed(seed)
    x = torch.cat([train, torch.ones(len(train), 1)], dim=1)  # the last column carries the bias
    w = torch.randn(x.shape[1], classes, generator=g).mul_(0.01)
    w[-1] = 0
    batch = min(protocol.batch_size, len(x))
    steps = math.ceil(len(x) / batch)
    velocity, total, step = torch.zeros_like(w), steps * protocol.epochs, 0
    for _ in range(protocol.epochs):
        for index in torch.split(torch.randperm(len(x), generator=g), batch):
            rows = x[index]
            error = torch.softmax(rows @ w, dim=1)  # (B, classes)
            error[torch.arange(len(index)), train_labels[index]] -= 1
            gradient = torch.addmm(w, rows.T, error, beta=protocol.weight_decay, alpha=1 / len(index))
            velocity.mul_(protocol.momentum).add_(gradient)
            lr = protocol.lr * 0.5 * (1 + math.cos(math.pi * step / total))
            w.sub_(velocity, alpha=lr)
            step += 1
    return w
