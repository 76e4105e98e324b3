"""The contrastive losses over a pair graph: Eq. 1 (l) and Eq. 4 (l') of one network, and those across two."""

from typing import Any, Literal

import torch
from torch import Tensor

from ecpp.objective import pairs as graphs
from ecpp.objective.given import check_embeddings, check_tau
from ecpp.objective.similarity import Terms
from ecpp.objective.unit import gradient, precision, unit, wide

Reduction = Literal["mean", "mean_n", "sum"]
PairReduction = Literal["sum", "mean"]


def contrastive(
    z: Tensor,
    pairs: Tensor | None = None,
    *,
    tau: float = 0.2,
    positive_in_denominator: bool = False,
    reduction: Reduction = "mean",
    pair_reduction: PairReduction = "sum",
    everyone: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """Contrastive loss of K views: `z` is (K, N, D), the embedding of view k of image n in `z[k, n]`.

    `positive_in_denominator=False` is l' (Eq. 4), `True` is l (Eq. 1). The negatives of a pair are the
    other images in its own two views, so that every pair term equals the two-view loss.
    `reduction` says how the 2N anchors of a pair are joined: "mean" (over 2N), "mean_n" (their sum
    over N) or "sum" (Eq. 2 as printed); `pair_reduction` how the pairs are: "sum" (Eq. 3) or "mean".

    With several processes `z` holds the images of this one, `everyone` (K, N, D) those of all, gathered
    with gradient, `z[:, r]` being `everyone[:, first + r]`: the losses of all processes then add up to
    the loss of the whole batch.
    """
    check_embeddings(z, "z")
    check_tau(tau)
    if everyone is not None:
        _check_candidates(z, everyone, first, "z", "everyone")
    elif first:
        raise ValueError(f"first={first} is a place in everyone: give the embeddings of all processes, too")
    candidates = z if everyone is None else everyone
    if candidates.shape[1] < 2:
        raise ValueError("a batch of N=1 has no negatives: a contrastive loss needs at least 2 images")
    total, mask = _terms(z, everyone, pairs, tau, own=True, positive=positive_in_denominator, first=first)
    return _reduce(total, candidates.shape[1], mask, reduction, pair_reduction)


def cross(
    q: Tensor,
    keys: Tensor,
    pairs: Tensor | None = None,
    *,
    tau: float = 0.2,
    reduction: Reduction = "mean",
    pair_reduction: PairReduction = "sum",
    first: int = 0,
) -> Tensor:
    """InfoNCE of the predictions `q` (K, n, D) against another network's `keys` (K, N, D), as in MoCo v3.

    A pair (i, j) compares q[i] with keys[j] and q[j] with keys[i]; the denominator holds all N keys of
    that one view, the positive `keys[j, first + n]` among them. No gradient goes to `keys`, which may
    be gathered from all processes. `reduction` and `pair_reduction` are those of `contrastive`.
    """
    check_embeddings(q, "q")
    check_tau(tau)
    _check_candidates(q, keys, first, "q", "keys")
    total, mask = _terms(q, keys.detach(), pairs, tau, own=False, positive=True, first=first)
    return _reduce(total, keys.shape[1], mask, reduction, pair_reduction)


class _Known(torch.autograd.Function):
    """A number whose gradient for two tensors has been computed with it."""

    @staticmethod
    def forward(value: Tensor, a: Tensor, b: Tensor | None, da: Tensor | None, db: Tensor | None) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[3:])
        ctx.types = [None if x is None else x.dtype for x in inputs[1:3]]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the contrastive losses can be differentiated once, not twice: their gradient is written by "
                "hand. Call backward() or autograd.grad() without create_graph=True"
            )
        saved = zip(ctx.saved_tensors, ctx.types, strict=True)
        found = [None if d is None else (outer[0] * d).to(dtype) for d, dtype in saved]
        return None, *found, None, None


def _terms(
    z: Tensor, everyone: Tensor | None, pairs: Tensor | None, tau: float, *,
    own: bool, positive: bool, first: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sum over all anchors of all ordered pairs, and the graph on the device of `z`."""
    mask = graphs.resolve(pairs, len(z), z.device)
    # A graph on a GPU is never read, so no block of similarities can be left out there.
    needed = pairs.tolist() if pairs is not None and pairs.device.type == "cpu" else None
    tracked = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (z, everyone)]
    # Tiles with in-place products gain nothing from a compiler and would be unrolled: it leaves them alone.
    compute = _compute
    if torch.compiler.is_compiling():
        compute = torch.compiler.disable(_compute)  # type: ignore[no-untyped-call]  # torch types it so
    total, dz, other = compute(z, everyone, mask, needed, tau, own, positive, first, tracked)
    return (_Known.apply(total, z, everyone, dz, other) if any(tracked) else total), mask


@torch.no_grad()
def _compute(
    z: Tensor, everyone: Tensor | None, mask: Tensor, needed: list[list[bool]] | None, tau: float,
    own: bool, positive: bool, first: int, tracked: list[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The total and its gradient for `z` and `everyone`, in fp32 or float64 whatever the autocast."""
    given = [z] if everyone is None else [z, everyone]
    result = wide(*given)
    dtype = precision(tau, len(given[-1]) * given[-1].shape[1], *given)
    with torch.autocast(z.device.type, enabled=False):
        u, u_length = unit(z.to(dtype).contiguous())
        v, v_length = (u, u_length) if everyone is None else unit(everyone.to(dtype).contiguous())
        terms = Terms(u, v, mask, needed, tau, own=own, positive=positive, first=first,
                      gradient=(tracked[0], tracked[1]))  # fmt: skip
        total = terms.run()
        dz = gradient(terms.du, u, u_length).to(result) if tracked[0] and terms.du is not None else None
        other = gradient(terms.dv, v, v_length).to(result) if tracked[1] and terms.dv is not None else None
        return total.to(result), dz, other


def _check_candidates(z: Tensor, candidates: Tensor, first: int, name: str, others: str) -> None:
    check_embeddings(candidates, others)
    k, n, d = z.shape
    if (len(candidates), candidates.shape[2]) != (k, d):
        raise ValueError(
            f"{others} must be ({k} views, N images, {d}) as {name} is, but is {tuple(candidates.shape)}"
        )
    if not 0 <= first <= candidates.shape[1] - n:
        raise ValueError(
            f"the {n} images of {name} must lie within the {candidates.shape[1]} of {others}, but first={first}"
        )


def _reduce(total: Tensor, n: int, mask: Tensor, reduction: str, pair_reduction: str) -> Tensor:
    """The sum over all anchors of all ordered pairs, divided as asked."""
    anchors = {"mean": 2 * n, "mean_n": n, "sum": 1}
    if reduction not in anchors:
        raise ValueError(f"reduction must be one of {', '.join(anchors)}, but is {reduction!r}")
    if pair_reduction not in ("sum", "mean"):
        raise ValueError(f"pair_reduction must be sum or mean, but is {pair_reduction!r}")
    total = total / anchors[reduction]
    return total if pair_reduction == "sum" else total / (mask.sum() / 2)
