"""What is wrong with a step whose numbers are not finite: which images, which view pairs, which layer."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ecpp import distributed
from ecpp.data import Stream
from ecpp.method import Method
from ecpp.train.loop import autocast
from ecpp.views import ViewBatch

_NAMED = 5


@dataclass(frozen=True)
class Failure:
    """A step that broke; views are counted from 1."""

    step: int  # the number of the update, from 1
    images: tuple[str, ...]  # those that are not finite at the first layer that is not; else all of the step
    views: tuple[int, ...]  # views that are not finite before they enter the encoder
    pairs: tuple[tuple[int, int], ...]  # whose loss is not finite
    layer: str | None  # the first one whose output is not finite
    largest_weight: float
    parameters: tuple[str, ...] = ()  # whose gradient is not finite though the loss is
    seen: str = "the loss or a gradient was not finite"  # while training

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """What happened, for a person."""
        names = ", ".join(self.images[:_NAMED]) + (", …" if len(self.images) > _NAMED else "")
        pairs = ", ".join(f"{i}-{j}" for i, j in self.pairs[: _NAMED * 2])
        pairs += ", …" if len(self.pairs) > _NAMED * 2 else ""
        if self.views:
            views = ", ".join(map(str, self.views))
            return (
                f"step {self.step}: an image is not finite before it enters the encoder, in the views {views} "
                f"of {names}; the loss is not finite for the view pairs {pairs or 'none'}"
            )
        if not math.isfinite(self.largest_weight):
            what = self.seen
        elif self.layer is not None:
            what = f"the output of {self.layer} is not finite, for {len(self.images):,} images ({names})"
        elif self.pairs:
            what = f"the loss is not finite, in a step of {len(self.images):,} images ({names})"
        elif self.parameters:
            what = f"the gradient of {self.parameters[0]} and {len(self.parameters) - 1} more is not finite ({names})"
        else:
            what = f"{self.seen} (the images were {names})"
        where = f", in the view pairs {pairs}" if pairs else ""
        weights = f"the largest weight before it is {self.largest_weight:.3g}"
        return f"training diverged at step {self.step}: {what}{where}; {weights}"


def diagnose(method: Method, stream: Stream, step: int, precision: str, seen: str) -> Failure:
    """Compute a step again, with the weights before it, and look; every rank takes part."""
    batch = next(stream.batches(step, step + 1))
    broken = _broken_inputs(batch)  # (K, n)
    layer, rows = _first_layer(method, batch, precision)
    own = torch.zeros(batch.n, dtype=torch.bool)
    own[rows] = True
    if broken.any():
        own = broken.any(dim=0)
    mask = distributed.gather_rows(own.to(torch.uint8)).bool()
    samples = distributed.gather_rows(batch.samples.cpu())
    if not mask.any():
        mask = torch.ones_like(mask)
    views = distributed.anywhere(broken.any(dim=1)).nonzero()[:, 0]
    pairs, parameters = _backward(method, batch, precision)
    weights = torch.stack([p.detach().abs().max().float() for p in method.parameters()])
    return Failure(
        step=step + 1,
        images=tuple(stream.images.name(i) for i in samples[mask].tolist()),
        views=tuple(int(v) + 1 for v in views),
        pairs=pairs,
        layer=layer,
        largest_weight=float(weights.max()),
        parameters=parameters,
        seen=seen,
    )


def _broken_inputs(batch: ViewBatch) -> Tensor:
    """(K, n): the views that hold a pixel which is not finite."""
    return torch.stack([~batch.view(k).isfinite().flatten(1).all(dim=1).cpu() for k in range(batch.k)])


def _first_layer(method: Method, batch: ViewBatch, precision: str) -> tuple[str | None, list[int]]:
    """The first layer whose output is not finite, and the images whose rows are not (all are view-major)."""
    found: list[tuple[str, list[int]]] = []

    def watch(name: str, module: nn.Module) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if found or not isinstance(output, Tensor) or output.isfinite().all():
                return
            rows = (~output.isfinite().flatten(1).all(dim=1)).nonzero()[:, 0]
            found.append((name, sorted({int(r) % batch.n for r in rows})))

        return module.register_forward_hook(look)

    hooks = [watch(n, m) for n, m in method.named_modules() if not list(m.children())]
    try:
        with torch.no_grad(), autocast(batch.groups[0].device, precision):
            method(batch, diagnose=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else (None, [])


def _backward(
    method: Method, batch: ViewBatch, precision: str
) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...]]:
    """The pairs whose loss is not finite, and the parameters whose gradient is not."""
    method.zero_grad(set_to_none=True)
    with autocast(batch.groups[0].device, precision):
        step = method(batch)
    matrix = step.metrics.get("pair_loss")
    pairs = [] if matrix is None else (~matrix.isfinite()).nonzero().tolist()
    if matrix is None and not step.loss.isfinite():
        pairs = [[i, j] for i in range(batch.k) for j in range(i + 1, batch.k)]
    torch.autograd.backward(step.loss)
    bad = [n for n, p in method.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    method.zero_grad(set_to_none=True)
    return tuple((i + 1, j + 1) for i, j in pairs if i < j), tuple(bad)
