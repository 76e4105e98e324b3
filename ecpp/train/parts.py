"""A batch that goes backward in parts: less memory, and what that does to the loss."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ecpp import distributed
from ecpp.method import Method, Step
from ecpp.model.recompute import unremembered
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


def backward_in_micro_batches(
    method: Method, batch: ViewBatch, guard: Guard, size: int, *, diagnose: bool = True
) -> Step:
    """The gradient of the whole batch with the activations of `size` images at a time (Gao et al. 2021).

    First all embeddings without gradient; then the loss of all of them and its gradient for each; then every
    part once more, backward from that gradient. BatchNorm sees a part at a time, and follows the second pass.
    """
    parts = [some_images(batch, i, min(i + size, batch.n)) for i in range(0, batch.n, size)]
    states, rows = [], []
    with torch.no_grad(), unremembered(method):
        for part in parts:
            states.append(_random_state(part))
            rows.append(method.embeddings(part))
    whole = [torch.cat(column, dim=1).requires_grad_() for column in zip(*rows, strict=True)]
    step: Step = method.compare(batch, *map(distributed.gather, whole), diagnose=diagnose)
    torch.autograd.backward(guard.scaled(step.loss))
    for i, (part, state) in enumerate(zip(parts, states, strict=True)):
        _set_random_state(part, state)  # the same dropout again
        mine = [None if w.grad is None else w.grad[:, i * size : (i + 1) * size] for w in whole]
        again = zip(method.embeddings(part), mine, strict=True)
        live = [(e, g) for e, g in again if g is not None and e.requires_grad]
        torch.autograd.backward([e for e, _ in live], [g.to(e.dtype) for e, g in live])
    distributed.average([p.grad for p in method.parameters() if p.grad is not None])
    return Step(step.loss.detach(), step.metrics)


def _random_state(batch: ViewBatch) -> list[Tensor]:
    on_gpu = batch.groups[0].device.type == "cuda"
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]


def _set_random_state(batch: ViewBatch, state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], batch.groups[0].device)
