"""The training loop."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ecpp.data import Stream
from ecpp.method import Method, Step
from ecpp.views import ViewBatch


@dataclass
class Progress:
    """How far training has come; everything else that counts is derived from it."""

    step: int = 0
    seconds: float = 0.0  # of training: neither evaluation nor checkpoints
    epoch_loss: float = 0.0  # the sum over the steps of the running epoch


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
    pairs_per_image: int,
    bf16: bool = False,
    clip: float | None = None,
    log_every: int = 10,
    save_every: float = 600.0,
) -> None:
    """Train from `progress.step` to the end of the last epoch; save after each, and every `save_every` seconds."""
    total = epochs * stream.steps_per_epoch
    method.train()
    window, saved = _Window(), time.monotonic()
    for batch, waited in _timed(stream.batches(progress.step, total)):
        lr = lr_of(progress.step)
        end_of_epoch = (progress.step + 1) % stream.steps_per_epoch == 0
        at_log = end_of_epoch or (progress.step + 1) % log_every == 0
        for group in optimizer.param_groups:
            group["lr"] = lr
        with torch.autocast(stream.device.type, dtype=torch.bfloat16, enabled=bf16):
            step: Step = method(batch, diagnose=at_log)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(step.loss)
        if clip is not None:
            step.metrics["gradient_norm"] = nn.utils.clip_grad_norm_(method.parameters(), clip)
        optimizer.step()
        progress.step += 1
        method.after_step(progress.step / total)
        window.add(step.loss.detach(), waited)

        if not at_log:
            continue
        # From here on the device is waited for, once per log line.
        images = progress.step * stream.batch_size
        record = window.close(progress, stream.batch_size * stream.plan.k)
        at = {
            "step": progress.step,
            "epoch": progress.step / stream.steps_per_epoch,
            "seconds": progress.seconds,
            "view_passes": images * stream.plan.k,
            "pairs": images * pairs_per_image,
        }
        values = {name: _plain(v.tolist()) for name, v in step.metrics.items()}
        _check_finite(record["loss"], progress.step)
        hooks.log({"kind": "step", **at, "lr": lr, **record, **values})
        if end_of_epoch:
            epoch = progress.step // stream.steps_per_epoch
            _check_weights(method, progress.step)
            mean, progress.epoch_loss = progress.epoch_loss / stream.steps_per_epoch, 0.0
            hooks.log({"kind": "epoch", **at, "epoch": epoch, "loss": mean, **hooks.after_epoch(epoch)})
            method.train()
        if end_of_epoch or time.monotonic() - saved > save_every:
            hooks.save()
            saved = time.monotonic()
        window = _Window()


def _plain(value: Any) -> Any:
    """A number, or a matrix as lists of numbers, with the six digits that a float is good for."""
    return [_plain(v) for v in value] if isinstance(value, list) else float(f"{value:.6g}")


def _check_finite(value: float, step: int, what: str = "loss") -> None:
    if not math.isfinite(value):
        raise ValueError(
            f"the {what} became {value} by step {step}: training diverged. A lower --lr or --clip 1, with another "
            "--out, usually helps; a checkpoint, if there is one, is from before"
        )


def _check_weights(method: nn.Module, step: int) -> None:
    """A last step can spoil the weights without a loss to show it."""
    largest = torch.stack([p.detach().abs().max() for p in method.parameters()]).max()
    _check_finite(largest.item(), step, what="largest weight")


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

    def close(self, progress: Progress, views_per_step: int) -> dict[str, float]:
        """The means over the window; its time and loss join the progress."""
        loss = float(self.loss)
        elapsed = time.perf_counter() - self.started
        progress.seconds += elapsed
        progress.epoch_loss += loss
        return {
            "loss": loss / self.steps,
            "views_per_second": self.steps * views_per_step / elapsed,
            "wait_share": self.waited / elapsed,
        }
