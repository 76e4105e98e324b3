"""What methods are made of: all views through one encoder and one head, and what is looked at."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from ecpp.distributed import gather
from ecpp.objective import diagnostics
from ecpp.objective import pairs as graphs
from ecpp.views import ViewBatch

PairReduction = Literal["sum", "mean"]
BNMode = Literal["per_group", "per_view"] | tuple[str, ...]
TargetViews = Literal["all", "large_only"]


class Step(NamedTuple):
    """What one batch teaches: a loss to go backward from, and values to look at, all without gradient."""

    loss: Tensor
    metrics: dict[str, Tensor]


class Shared(TypedDict, total=False):
    """What every method takes by name."""

    pairs: Tensor | None  # the graph of the views that teach each other; None: all do
    pair_reduction: PairReduction
    bn_mode: BNMode  # see `encode`


class Method(nn.Module):
    """What the training loop trains: called with a ViewBatch it gives a Step."""

    compare: Callable[..., Step]
    """(batch, *embeddings, diagnose): the loss of the embeddings of all images, and what there is to see of them."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        *,
        pairs: Tensor | None = None,
        pair_reduction: PairReduction = "sum",
        bn_mode: BNMode = "per_group",
    ) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, projector
        self.pair_reduction, self.bn_mode = pair_reduction, bn_mode
        # No buffer: it stays on the CPU, where an objective can read it without stopping a GPU.
        self.pairs = pairs

    def forward(self, batch: ViewBatch, diagnose: bool = True) -> Step:
        """The loss of the embeddings of all processes, of which each computes its own."""
        return self.compare(batch, *map(gather, self.embeddings(batch)), diagnose=diagnose)

    def embeddings(self, batch: ViewBatch) -> tuple[Tensor, ...]:
        """All that the loss compares, each (K, N, D) or of some views (L, N, D): nothing before it joins images."""
        return (self.embed(batch),)

    def embed(self, batch: ViewBatch) -> Tensor:
        """The projections of all views, (K, N, D)."""
        return project(self.projector, encode(self.encoder, batch, self.bn_mode))

    def graph(self, z: Tensor) -> Tensor:
        """The pair graph of the K views of `z`, (K, K), on its device."""
        return graphs.resolve(self.pairs, len(z), z.device)

    def after_step(self, progress: float) -> None:
        """What follows the optimizer's step, `progress` going from 0 to 1: nothing, for most methods."""

    def per_pair(self, loss: Callable[..., Tensor], *views: Tensor) -> Tensor:
        """(K, K): what each pair of the graph adds to a summed loss, by `loss` of its two views alone."""

        def alone(i: int, j: int) -> Tensor:
            return loss(*(torch.stack([v[i], v[j]]) for v in views))

        return diagnostics.per_pair(alone, self.graph(views[0]))


def encode(
    encoder: nn.Module,
    batch: ViewBatch,
    bn_mode: BNMode = "per_group",
    target_views: TargetViews = "all",
) -> Tensor:
    """The views through the encoder, as (K, N, D); "large_only" takes the L of the largest size, (L, N, D).

    `bn_mode` says what shares an encoder pass, and so what BatchNorm averages over: all views of a resolution,
    each view by itself, or, given the kind of every view, the views of one resolution and kind.
    """
    if bn_mode not in ("per_group", "per_view") and not _kinds_fit(bn_mode, batch.k):
        raise ValueError(
            f"bn_mode must be per_group, per_view or a kind for each of the K={batch.k} views, but is {bn_mode!r}"
        )
    if target_views == "large_only":
        return batch.stack(_passes(encoder, batch, 0, bn_mode))
    return batch.stack(
        [h for group in range(len(batch.groups)) for h in _passes(encoder, batch, group, bn_mode)]
    )


def _kinds_fit(bn_mode: BNMode, k: int) -> bool:
    return isinstance(bn_mode, tuple) and len(bn_mode) == k


def _passes(encoder: nn.Module, batch: ViewBatch, group: int, bn_mode: BNMode) -> list[Tensor]:
    """The outputs of one resolution, in the order of its views: in one piece, or one for each view."""
    images, places = batch.groups[group], batch.order[group]
    if bn_mode == "per_group":
        return [encoder(images)]
    views = images.chunk(len(places))
    out: dict[int, Tensor] = {}
    kinds = places if bn_mode == "per_view" else [bn_mode[place] for place in places]
    for kind in dict.fromkeys(kinds):
        alike = [i for i, other in enumerate(kinds) if other == kind]
        outputs = encoder(torch.cat([views[i] for i in alike])).chunk(len(alike))
        out |= dict(zip(alike, outputs, strict=True))
    return [out[i] for i in range(len(places))]


def project(head: nn.Module, h: Tensor) -> Tensor:
    """(K, N, D) through a head in one pass over all views."""
    out: Tensor = head(h.flatten(0, 1))
    return out.view(*h.shape[:2], -1)
