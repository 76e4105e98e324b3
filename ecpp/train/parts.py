"""A batch that goes backward in parts: less memory, and what that does to the loss."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ecpp.method import Step
from ecpp.train.guard import Guard
from ecpp.views import ViewBatch


def some_images(batch: ViewBatch, start: int, stop: int) -> ViewBatch:
    """All views of the images start, start + 1, … stop - 1 of a batch."""
    groups = []
    for images, places in zip(batch.groups, batch.order, strict=True):
        views = images.view(len(places), batch.n, *images.shape[1:])  # (V, N, C, S, S)
        cut = views[:, start:stop].flatten(0, 1)
        groups.append(cut.contiguous(memory_format=torch.channels_last))
    return ViewBatch(tuple(groups), batch.order, batch.samples[start:stop])


def backward(
    module: nn.Module, batch: ViewBatch, guard: Guard, parts: int = 1, *, diagnose: bool = True
) -> Step:
    """The gradient of one batch into the parameters.

    With `parts`, the mean of the losses of equal parts: exactly the batch's where images do not meet in the
    loss, but with negatives from within a part alone where they do.
    """
    size = batch.n // parts
    losses: list[Tensor] = []
    for i in range(parts):
        last = i == parts - 1
        # Ranks join their gradients once, in the last part.
        waiting: AbstractContextManager[None] = nullcontext()
        if isinstance(module, nn.parallel.DistributedDataParallel) and not last:
            waiting = module.no_sync()
        # What an unreadable image left over goes with the last part.
        part = batch if parts == 1 else some_images(batch, i * size, batch.n if last else (i + 1) * size)
        with waiting:
            step: Step = module(part, diagnose=diagnose)
            torch.autograd.backward(guard.scaled(step.loss / parts))
        losses.append(step.loss.detach())
    return Step(torch.stack(losses).mean(), step.metrics)
