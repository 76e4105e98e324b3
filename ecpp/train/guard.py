"""What stops a run whose numbers go wrong, without waiting for the device at every step."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ecpp import distributed

_FINE = -1
_FIRST_SCALE, _GROW_AFTER, _VANISHED = 2.0**16, 2000, 2.0**-6


class NotFinite(ValueError):
    """A loss or gradient of a step is no finite number."""

    def __init__(self, step: int, sentence: str) -> None:
        super().__init__(sentence)
        self.step = step


class Guard:
    """Remembers the first step whose loss or gradient is not finite; from it on the optimizer stands still.

    With fp16 the loss is scaled, and a gradient that overflows only skips its step and halves the scale:
    there a step is bad if its loss is not finite or the scale has vanished.
    """

    def __init__(self, device: torch.device, *, fp16: bool = False) -> None:
        self.first_bad = torch.full((), _FINE, dtype=torch.long, device=device)
        self.fp16 = fp16
        self.scale = torch.full((), _FIRST_SCALE if fp16 else 1.0, device=device)
        self.since_overflow = torch.zeros((), device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """What to go backward from."""
        return loss * self.scale if self.fp16 else loss

    @torch.no_grad()
    def step(
        self,
        step: int,
        loss: Tensor,
        parameters: Iterable[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        clip: float | None,
    ) -> Tensor:
        """The optimizer's step, unless something is wrong; returns the norm of the gradient."""
        trained = [p for p in parameters if p.grad is not None]
        gradients = [p.grad for p in trained if p.grad is not None]
        if self.fp16:
            torch._foreach_mul_(gradients, self.scale.reciprocal())
        norm = nn.utils.get_total_norm(gradients)
        if clip is not None:
            nn.utils.clip_grads_with_norm_(trained, clip, norm)
        finite = torch.isfinite(norm)
        good = torch.isfinite(loss) & (self.scale > _VANISHED if self.fp16 else finite)
        self.first_bad = torch.where((self.first_bad == _FINE) & ~good, step, self.first_bad)
        optimizer.found_inf = ((self.first_bad != _FINE) | ~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
        if self.fp16:
            self._rescale(finite)
        return norm

    def _rescale(self, finite: Tensor) -> None:
        self.since_overflow = torch.where(finite, self.since_overflow + 1, 0)
        grow = self.since_overflow >= _GROW_AFTER
        self.scale = torch.where(finite, torch.where(grow, self.scale * 2, self.scale), self.scale / 2)
        self.since_overflow = torch.where(grow, 0, self.since_overflow)

    def check(self) -> None:
        """Wait for the device, and raise if a step was bad on any rank."""
        bad = self.first_bad.cpu()
        # The ranks may have seen it at different steps: the earliest counts, and those without count for nothing.
        never = torch.iinfo(torch.long).max
        earliest = never - int(distributed.largest(never - torch.where(bad == _FINE, never, bad)[None]))
        if earliest == never:
            return
        raise NotFinite(earliest, f"the loss or a gradient of step {earliest + 1} is not finite")

    def state(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "since_overflow": self.since_overflow}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.scale = state["scale"].to(self.scale.device)
        self.since_overflow = state["since_overflow"].to(self.scale.device)
