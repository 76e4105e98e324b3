"""The protocols that see augmented images: a linear layer on a frozen encoder, and all weights trained."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ecpp.data import Stream
from ecpp.evaluate.linear import LinearProtocol, Probes, cosine
from ecpp.evaluate.protocols import Best, Outcome
from ecpp.evaluate.score import Score, score

AUGMENTED = "randomly cropped (8 to 100 % of the area) and flipped images"
JUDGED = 10  # epochs, about, after which the test images are looked at


@dataclass(frozen=True)
class FinetuneProtocol:
    """How all weights are trained, from a pretrained encoder or from a random one."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    epochs: int = 30
    batch_size: int = 128

    def at_least(self, steps: int, images: int) -> "FinetuneProtocol":
        """The same with as many epochs as so many steps take: few labels are seen more often."""
        per_epoch = max(1, images // self.batch_size)
        return replace(self, epochs=max(self.epochs, math.ceil(steps / per_epoch)))

    def describe(self) -> str:
        return (
            f"all weights by SGD, {self.epochs} epochs, batch {self.batch_size}, lr {self.lr:.4g} cosine to 0, "
            f"momentum {self.momentum}, weight decay {self.weight_decay}, on {AUGMENTED}; last epoch"
        )


def linear_aug(
    encoder: nn.Module,
    stream: Stream,
    labels: Tensor,
    test: Tensor,
    truth: Tensor,
    *,
    classes: int,
    protocol: LinearProtocol,
    seed: int = 0,
    bf16: bool = False,
) -> Outcome:
    """The linear probe on features that are computed anew for every augmented batch; `test` are plain features."""
    encoder.eval()
    best, probes = Best(), None
    total = protocol.epochs * stream.steps_per_epoch
    for step, batch in enumerate(stream.batches(0, total)):
        with torch.no_grad(), torch.autocast(stream.device.type, dtype=torch.bfloat16, enabled=bf16):
            rows = encoder(batch.groups[0]).float()
        if probes is None:
            probes = Probes(
                rows,
                classes,
                [(protocol.lr, protocol.weight_decay)],
                momentum=protocol.momentum,
                generator=torch.Generator().manual_seed(seed),
            )
        probes.step(rows, labels[batch.samples].to(rows.device), cosine(step, total))
        if (step + 1) % stream.steps_per_epoch == 0:
            best.add((step + 1) // stream.steps_per_epoch, float(probes.accuracies(test, truth)))
    if probes is None:
        raise ValueError("linear-aug trains for at least one epoch")
    details = protocol.describe(f"a frozen encoder's features of {AUGMENTED}")
    found = score(probes.logits(test), truth)
    return Outcome(found, details, len(stream.usable), (seed,), protocol.epochs, best.found)


class Classifier(nn.Module):
    """An encoder with one linear layer on it."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(images))
        return out


def finetune(
    encoder: nn.Module,
    stream: Stream,
    labels: Tensor,
    count: Callable[[nn.Module], Score],
    *,
    width: int,
    classes: int,
    protocol: FinetuneProtocol,
    bf16: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Train a copy of the encoder and a linear layer on it; `count` asks a model for the test images."""
    model = Classifier(copy.deepcopy(encoder), width, classes).to(stream.device).train()
    weights = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": protocol.weight_decay},
        {"params": [p for p in weights if p.ndim <= 1]},  # biases and normalisation do not decay
    ]
    optimizer = torch.optim.SGD(groups, lr=protocol.lr, momentum=protocol.momentum)
    epochs = protocol.epochs
    total, best, found = epochs * stream.steps_per_epoch, Best(), Score(0.0, None, (), 0)
    for step, batch in enumerate(stream.batches(0, total)):
        for group in optimizer.param_groups:
            group["lr"] = protocol.lr * cosine(step, total)
        with torch.autocast(stream.device.type, dtype=torch.bfloat16, enabled=bf16):
            answers = model(batch.groups[0])
        loss = F.cross_entropy(answers.float(), labels[batch.samples].to(answers.device))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        epoch, rest = divmod(step + 1, stream.steps_per_epoch)
        if rest == 0 and (epoch % -(-epochs // JUDGED) == 0 or epoch == epochs):
            found = count(model)
            best.add(epoch, found.top1)
            say(f"epoch {epoch}/{epochs}  loss {loss.item():.3g}  top-1 {found.top1:.1%}")
    details = replace(protocol, batch_size=stream.batch_size).describe()
    return Outcome(found, details, len(stream.usable), (stream.seed,), epochs, best.found)
