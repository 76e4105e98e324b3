"""The training loop."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ecpp.data import Stream
from ecpp.method import Method
from ecpp.views import ViewBatch


@dataclass
class Progress:
    """How far training has come; everything else that counts is derived from it."""

    step: int = 0
    seconds: float = 0.0  # of training: neither evaluation nor checkpoints


@dataclass(frozen=True)
class Hooks:
    """What the loop calls: every `log_every` steps, after each epoch (its result joins the record), and to save."""

    log: Callable[[dict[str, Any]], None]
    after_epoch: Callable[[int], dict[str, Any]]
    save: Callable[[], None]


def train(
    method: Method,
    stream: Stream,
    optimizer: torch.optim.Optimizer,
    lr_of: Callable[[int], float],
    progress: Progress,
    hooks: Hooks,
    *,
    epochs: int,
    forward: nn.Module | None = None,
    bf16: bool = False,
    clip: float | None = None,
    log_every: int = 10,
) -> None:
    """Train from `progress.step` to the end of the last epoch.

    `forward` is what a batch is given to, if not the method itself (the method in its DDP wrapping, say).
    """
    forward = forward or method
    total = epochs * stream.steps_per_epoch
    k, pairs = stream.plan.k, stream.plan.pairs_per_image
    method.train()
    window = _Window()
    epoch_loss = torch.zeros((), device=stream.device)
    for batch, waited in _timed(stream.batches(progress.step, total)):
        lr = lr_of(progress.step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        with torch.autocast(stream.device.type, dtype=torch.bfloat16, enabled=bf16):
            loss, metrics = forward(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            metrics["gradient_norm"] = nn.utils.clip_grad_norm_(method.parameters(), clip)
        optimizer.step()
        progress.step += 1
        method.after_step(progress.step / total)
        epoch_loss += loss.detach()

        window.add(loss.detach(), waited)
        end_of_epoch = progress.step % stream.steps_per_epoch == 0
        if progress.step % log_every == 0 or end_of_epoch:
            images = progress.step * stream.batch_size
            seen = {"view_passes": images * k, "pairs": images * pairs}
            values = {name: v.item() for name, v in metrics.items()}  # the device is waited for here alone
            record = window.close(stream.batch_size * k)
            progress.seconds += record.pop("elapsed")
            at = {"step": progress.step, "epoch": progress.step / stream.steps_per_epoch}
            at |= {"seconds": progress.seconds, **seen}
            hooks.log({"kind": "step", **at, "lr": lr, **record, **values})
            if end_of_epoch:
                epoch = progress.step // stream.steps_per_epoch
                mean = epoch_loss.item() / stream.steps_per_epoch
                epoch_loss.zero_()
                hooks.log({"kind": "epoch", **at, "epoch": epoch, "loss": mean, **hooks.after_epoch(epoch)})
                method.train()
                hooks.save()
            window = _Window()


def _timed(batches: Iterator[ViewBatch]) -> Iterator[tuple[ViewBatch, float]]:
    """Each batch with the seconds that it was waited for."""
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return
        yield batch, time.perf_counter() - started


class _Window:
    """What happened since the last log line."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.steps, self.waited = 0, 0.0
        self.loss: Tensor | float = 0.0

    def add(self, loss: Tensor, waited: float) -> None:
        self.steps += 1
        self.waited += waited
        self.loss = self.loss + loss

    def close(self, views_per_step: int) -> dict[str, float]:
        """The means over the window."""
        elapsed = time.perf_counter() - self.started
        return {
            "elapsed": elapsed,
            "loss": float(self.loss) / self.steps,
            "views_per_second": self.steps * views_per_step / elapsed,
            "wait_share": self.waited / elapsed,
        }
