"""The sums over all similarities that a contrastive loss needs, and their gradient, tile by tile."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ecpp.objective.sums import Exponentials, Logarithms
from ecpp.objective.unit import doubled


def tile(device: torch.device) -> int:
    """How many rows a tile of similarities has: on a CPU two such tiles fit into the cache."""
    return 512 if device.type == "cpu" else 2048


class Part(NamedTuple):
    """Neighbouring views with all their images, or some of the images of one view."""

    views: slice
    images: slice

    def of(self, x: Tensor) -> Tensor:
        """Its rows of a (K, N, D) tensor as a (rows, D) view: `x` is contiguous."""
        return x[self.views, self.images].view(-1, x.shape[2])

    def shape(self) -> tuple[int, int]:
        return self.views.stop - self.views.start, self.images.stop - self.images.start


def _pieces(n: int, longest: int) -> list[slice]:
    """0 … n in as few pieces of at most `longest` as will do, of about equal length."""
    step = -(-n // -(-n // longest))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


class Terms:
    """Anchors `u` (K, n, D) against candidates `v` (K, N, D), all of length 1 or 0.

    Adds up log(denominator) - positive over the anchors u[i, n] and the views j that `mask` pairs with i.
    The positive is v[j, first + n]; the denominator holds v[j, m] for m of other images, those of view i
    too if `own`, and the positive itself if `positive`. Where u and v are one tensor, S is symmetric: a
    tile then serves the anchors in its rows and those in its columns.
    """

    def __init__(
        self, u: Tensor, v: Tensor, mask: Tensor, needed: list[list[bool]] | None, tau: float, *,
        own: bool, positive: bool, first: int = 0, gradient: tuple[bool, bool],
    ) -> None:  # fmt: skip
        self.u, self.v, self.mask, self.needed, self.tau = u, v, mask[:, :, None], needed, tau
        self.own, self.positive, self.first = own, positive, first
        self.symmetric = u is v
        k, n, _ = u.shape
        # exp(1/tau) and its inverse stay far from the ends of the type, also summed over many images
        safe = 1 / tau <= (600 if u.dtype == torch.float64 else 64)
        self.do: type[Exponentials] | type[Logarithms] = Exponentials if safe else Logarithms
        self.sums = u.new_full((k, k, n), self.do.nothing)  # at [i, j, n]: over the images m of view j
        self.weights = self.sums.clone()  # at [i, j, n]: one over the denominator
        self.positives = u.new_zeros(k, k, n)
        self.du = torch.zeros_like(u) if gradient[0] else None
        self.dv = self.du if self.symmetric else torch.zeros_like(v) if gradient[1] else None
        many, side = v.shape[1], tile(u.device)
        joined = min(k, max(1, side // many))  # views in a tile; a small problem is one tile
        self.groups = [slice(i, min(i + joined, k)) for i in range(0, k, joined)]
        self.split = 4 * side  # a longer view is cut, and its tiles are computed twice
        size = joined * min(n, self.split) * joined * min(many, self.split)
        self.keep = max(n, many) <= self.split and len(self.groups) * size <= 16 * side**2
        wanted = any(gradient)
        self.buffer = u.new_empty(0 if wanted and self.keep and len(self.groups) == 1 else size)
        self.spare = u.new_empty(size if wanted else 0)

    def run(self) -> Tensor:
        """The sum of all terms; then `du` and `dv` hold its gradient, as far as it was asked for."""
        wanted = self.du is not None or self.dv is not None
        inside = [(a, list(self._tiles(a, a))) for a in self.groups if self.own or a.stop - a.start > 1]
        # These come first, for the sums inside each anchor's own view.
        kept = [self._sum(a, a, tiles, keep=wanted and self.keep) for a, tiles in inside]
        for a in self.groups:
            for b in self.groups:
                if a == b or (self.symmetric and a.start > b.start) or not self._holds_a_pair(a, b):
                    continue
                tiles = list(self._tiles(a, b))
                e = self._sum(a, b, tiles)
                if wanted:
                    self._multiply(tiles, e)
        everything = slice(None)
        negatives = self._negatives(everything, everything)
        if wanted:
            self._pull_together(self.do.share(negatives, self.weights))
            own = self.weights.diagonal(dim1=0, dim2=1)  # (n, K)
            if self.own:  # the negatives of an anchor's own view are in the denominators of all its pairs
                own.copy_(self.do.total(self.weights, 1).T)
            for (_, tiles), e in zip(inside, kept, strict=True):
                self._multiply(tiles, e if self.keep else None)
        terms = self.do.log(negatives) - self.positives
        if self.positive:
            terms = F.softplus(terms, threshold=50)  # log(1 + negatives / positive), exact where that is tiny
        return torch.where(self.mask, terms, 0).sum(dtype=doubled(terms))

    def _holds_a_pair(self, a: slice, b: slice) -> bool:
        return self.needed is None or any(any(row[b]) for row in self.needed[a])

    def _tiles(self, a: slice, b: slice) -> Iterator[tuple[Part, Part]]:
        for r in _pieces(self.u.shape[1], self.split):
            for c in _pieces(self.v.shape[1], self.split):
                if not (self.symmetric and a == b and r.start > c.start):
                    yield Part(a, r), Part(b, c)

    def _sum(self, a: slice, b: slice, tiles: list[tuple[Part, Part]], keep: bool = False) -> Tensor | None:
        """Sums and weights of the pairs between two groups of views; returns their tile if there is one alone."""
        for rows, columns in tiles:
            e = self._tile(rows, columns, keep)
            self._add(rows, columns, self.do.total(e, 3).transpose(1, 2))  # (g, h, rows)
            if self.symmetric and rows != columns:
                self._add(columns, rows, self.do.total(e, 1).transpose(0, 1))  # (h, g, columns)
        for i, j in ((a, b), (b, a)) if self.symmetric and a != b else ((a, b),):
            negatives = self._negatives(i, j)
            denominator = negatives
            if self.positive:
                denominator = self.do.join(negatives, self.do.exp(self.positives[i, j]))
            self.weights[i, j] = self.do.weights(denominator, self.mask[i, j])
        return e if len(tiles) == 1 else None

    def _add(self, anchors: Part, others: Part, total: Tensor) -> None:
        at = self.sums[anchors.views, others.views, anchors.images]
        at.copy_(self.do.join(at, total))

    def _negatives(self, a: slice, b: slice) -> Tensor:
        if not self.own:
            return self.sums[a, b]
        own = self.sums.diagonal(dim1=0, dim2=1).T[a, None]  # (g, 1, n)
        return self.do.join(own, self.sums[a, b])

    def _same_image(self, rows: Part, columns: Part, e: Tensor) -> tuple[Tensor, slice]:
        """The (g, h, ·) entries of a tile where both sides are views of one image, and those images' anchors."""
        offset = self.first + rows.images.start - columns.images.start
        entries = e.diagonal(offset, dim1=1, dim2=3)
        start = rows.images.start + max(0, -offset)
        return entries, slice(start, start + entries.shape[2])

    def _tile(self, rows: Part, columns: Part, keep: bool = False) -> Tensor:
        """(g, rows, h, columns): exp S or S itself, without what is no negative."""
        x, y = rows.of(self.u), columns.of(self.v)
        size = len(x) * len(y)
        s = (x.new_empty(size) if keep else self.buffer[:size]).view(len(x), len(y))
        torch.addmm(s, x, y.T, beta=0, alpha=1 / self.tau, out=s)
        e = s.view(*rows.shape(), *columns.shape())
        entries, anchors = self._same_image(rows, columns, e)
        self.positives[rows.views, columns.views, anchors] = entries
        if self.symmetric:
            self.positives[columns.views, rows.views, anchors] = entries.transpose(0, 1)
        entries.fill_(-math.inf)
        return self.do.open(e)

    def _multiply(self, tiles: list[tuple[Part, Part]], e: Tensor | None) -> None:
        """Adds the push of the negatives in these tiles to the gradient; `e` is the tile if it is at hand."""
        for rows, columns in tiles:
            g = self._tile(rows, columns) if e is None else e
            by_row = self.weights[rows.views, columns.views, rows.images].transpose(1, 2)[..., None]
            by_column = None
            if self.symmetric:
                by_column = self.weights[columns.views, rows.views, columns.images].transpose(0, 1)[:, None]
            self.do.weigh(g, by_row, by_column, self.spare[: g.numel()].view(g.shape))
            g = g.view(math.prod(rows.shape()), -1)
            if self.du is not None:
                rows.of(self.du).addmm_(g, columns.of(self.v), alpha=1 / self.tau)
            if self.dv is not None and not (self.symmetric and rows == columns):
                columns.of(self.dv).addmm_(g.T, rows.of(self.u), alpha=1 / self.tau)

    def _pull_together(self, shares: Tensor) -> None:
        """Adds the pull of the positives, `shares` (K, K, n) being that of the negatives in each denominator.

        What pulls along an embedding itself is lost when that is normalised, so v - u serves as well as v. It
        is exact where the views of an image are close; where they are not, v has the smaller rounding.
        """
        cosines = self.tau * torch.where(self.mask, self.positives, 0).sum((0, 1)) / self.mask.sum()
        for images in _pieces(self.u.shape[1], 256):
            others = slice(self.first + images.start, self.first + images.stop)
            w = shares[:, :, images].permute(2, 0, 1) / self.tau  # (n, K, K)
            close = (cosines[images, None] > 0.5).to(w.dtype)  # (n, 1): subtract or do not
            origin = close * self.u[:1, images]
            u = (self.u[:, images] - origin).transpose(0, 1)  # (n, K, D)
            v = u if self.symmetric else (self.v[:, others] - origin).transpose(0, 1)
            w = (w + w.mT if self.symmetric else w).contiguous()  # products of strided matrices are slow
            if self.du is not None:
                self.du[:, images] += ((close * w.sum(2))[..., None] * u - w @ v).transpose(0, 1)
            if self.dv is not None and not self.symmetric:
                self.dv[:, others] += ((close * w.sum(1))[..., None] * v - w.mT @ u).transpose(0, 1)
