"""The training loop."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ecpp import distributed
from ecpp.data import Stream
from ecpp.method import Method
from ecpp.train.guard import Guard, NotFinite
from ecpp.train.parts import backward, backward_in_micro_batches
from ecpp.train.signals import Stopped, listening
from ecpp.views import ViewBatch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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


@dataclass(frozen=True)
class Options:
    """How to train."""

    epochs: int
    pairs_per_image: int
    precision: str = "fp32"
    clip: float | None = None
    accumulate: int = 1
    micro_batch: int | None = None
    log_every: int = 10
    save_every: float = 600.0


def train(
    method: Method,
    stream: Stream,
    optimizer: torch.optim.Optimizer,
    guard: Guard,
    lr_of: Callable[[int], float],
    progress: Progress,
    hooks: Hooks,
    options: Options,
) -> None:
    """Train from `progress.step` to the end of the last epoch; save after each, and every `save_every` seconds."""
    total = options.epochs * stream.steps_per_epoch
    method.train()
    module = method if options.micro_batch else distributed.wrap(method)
    word, saved = distributed.Word(), time.monotonic()
    with listening() as signal:
        window = _Window()
        for batch, waited in _timed(stream.batches(progress.step, total)):
            lr, number = lr_of(progress.step), progress.step
            end_of_epoch = (number + 1) % stream.steps_per_epoch == 0
            at_log = end_of_epoch or (number + 1) % options.log_every == 0
            values = _step(module, batch, optimizer, guard, lr, number, options, diagnose=at_log)
            progress.step += 1
            method.after_step(progress.step / total)
            window.add(values["loss"], waited)

            stopping = word.tell(signal() != 0)
            if not at_log and not stopping:
                continue
            # From here on the device is waited for, once per log line.
            guard.check()
            now = _joined(values | {"loss": window.loss, "due": _due(saved, options)})
            record = window.close(progress, now.pop("loss"), stream.batch_size * stream.plan.k)
            due = now.pop("due") > 0
            at = _at(progress, stream, options)
            hooks.log({"kind": "step", **at, "lr": lr, **record, **now})
            if end_of_epoch or due or stopping:
                _check_weights(method, progress.step)
            if end_of_epoch:
                epoch = progress.step // stream.steps_per_epoch
                mean, progress.epoch_loss = progress.epoch_loss / stream.steps_per_epoch, 0.0
                hooks.log({"kind": "epoch", **at, "epoch": epoch, "loss": mean, **hooks.after_epoch(epoch)})
                method.train()
            if end_of_epoch or due or stopping:
                hooks.save()
                saved = time.monotonic()
            if stopping and progress.step < total:
                word.close()
                number = int(distributed.largest(torch.tensor([signal()])))
                raise Stopped(number, f"told to stop at step {progress.step} of {total}")
            window = _Window()
        word.close()


def _step(
    module: nn.Module,
    batch: ViewBatch,
    optimizer: torch.optim.Optimizer,
    guard: Guard,
    lr: float,
    number: int,
    options: Options,
    *,
    diagnose: bool,
) -> dict[str, Tensor]:
    """One update; its loss, metrics and gradient norm, still on the device."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    with autocast(batch.groups[0].device, options.precision):
        if options.micro_batch and isinstance(module, Method):
            step = backward_in_micro_batches(module, batch, guard, options.micro_batch, diagnose=diagnose)
        else:
            step = backward(module, batch, guard, options.accumulate, diagnose=diagnose)
    norm = guard.step(number, step.loss, module.parameters(), optimizer, options.clip)
    return {"loss": step.loss.detach(), **step.metrics, "gradient_norm": norm}


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The precision of the encoder and the heads; losses are always in fp32."""
    enabled = precision != "fp32"
    return torch.autocast(device.type, dtype=DTYPES[precision] if enabled else None, enabled=enabled)


def _due(saved: float, options: Options) -> Tensor:
    """The first rank's clock says for all when to save."""
    return torch.tensor(float(distributed.is_main() and time.monotonic() - saved > options.save_every))


def _joined(values: dict[str, Tensor]) -> dict[str, Any]:
    """The means over ranks, in one message: numbers, and matrices as lists, of as many digits as a float has."""
    flat = [v.detach().double().cpu().flatten() for v in values.values()]
    means = torch.split(distributed.mean(torch.cat(flat)), [len(v) for v in flat])
    return {
        name: _plain(mean.view(v.shape).tolist())
        for (name, v), mean in zip(values.items(), means, strict=True)
    }


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, list) else float(f"{value:.7g}")


def _at(progress: Progress, stream: Stream, options: Options) -> dict[str, float]:
    images = progress.step * stream.batch_size
    return {
        "step": progress.step,
        "epoch": progress.step / stream.steps_per_epoch,
        "seconds": progress.seconds,
        "view_passes": images * stream.plan.k,
        "pairs": images * options.pairs_per_image,
    }


def _check_weights(method: nn.Module, step: int) -> None:
    """A last step can spoil the weights, or statistics overflow, without a loss to show it."""
    state = [v for v in method.state_dict().values() if v.is_floating_point() and v.numel()]
    largest = torch.stack([v.detach().abs().max().float() for v in state]).max()
    if not torch.isfinite(largest):
        raise NotFinite(step - 1, f"the largest weight or statistic became {largest.item()} by step {step}")


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
        self.loss = torch.zeros(())

    def add(self, loss: Tensor, waited: float) -> None:
        self.steps += 1
        self.waited += waited
        self.loss = self.loss + loss

    def close(self, progress: Progress, loss: float, views_per_step: int) -> dict[str, float]:
        """The means over the window; its time and loss join the progress."""
        elapsed = time.perf_counter() - self.started
        progress.seconds += elapsed
        progress.epoch_loss += loss
        return {
            "loss": loss / self.steps,
            "views_per_second": self.steps * views_per_step / elapsed,
            "wait_share": self.waited / elapsed,
        }
