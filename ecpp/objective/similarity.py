"""The sums over all similarities that a contrastive loss needs, and their gradient, tile by tile."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Neighbouring views with all their images, or some of the images of one view."""

    views: slice
    images: slice

    def of(self, x: Tensor) -> Tensor:
        """Its rows of a (K, N, D) tensor as a (rows, D) view: `x` is contiguous."""
        return x[self.views, self.images].view(-1, x.shape[2])

    def shape(self) -> tuple[int, int]:
        return self.views.stop - self.views.start, self.images.stop - self.images.start


class Exponentials:
    """exp(S) is summed as it is: S lies within ±1/tau, which overflows for a very small tau alone."""

    nothing = 0.0

    @staticmethod
    def open(s: Tensor) -> Tensor:
        return s.exp_()

    @staticmethod
    def total(e: Tensor, dim: int) -> Tensor:
        return e.sum(dim)

    @staticmethod
    def join(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def log(total: Tensor) -> Tensor:
        return total.log()

    @staticmethod
    def weights(denominator: Tensor, mask: Tensor) -> Tensor:
        return mask / denominator

    @staticmethod
    def weigh(e: Tensor, rows: Tensor, columns: Tensor | None, spare: Tensor) -> None:
        e.mul_(rows if columns is None else torch.add(rows, columns, out=spare))


class Logarithms:
    """The same for any tau, two to three times slower: sums and weights are kept as logarithms."""

    nothing = -math.inf

    @staticmethod
    def open(s: Tensor) -> Tensor:
        return s

    @staticmethod
    def total(s: Tensor, dim: int) -> Tensor:
        return s.logsumexp(dim)

    @staticmethod
    def join(a: Tensor, b: Tensor) -> Tensor:
        return torch.logaddexp(a, b)

    @staticmethod
    def log(total: Tensor) -> Tensor:
        return total

    @staticmethod
    def weights(denominator: Tensor, mask: Tensor) -> Tensor:
        return (-denominator).masked_fill(~mask, -math.inf)

    @staticmethod
    def weigh(s: Tensor, rows: Tensor, columns: Tensor | None, spare: Tensor) -> None:
        if columns is None:
            s.add_(rows).exp_()
        else:
            torch.add(s, rows, out=spare).exp_()
            s.add_(columns).exp_().add_(spare)


class Terms:
    """Anchors `u` (K, n, D) against candidates `v` (K, N, D), all of length 1 or 0.

    Adds up log(denominator) - positive over the anchors u[i, n] and the views j that `mask` pairs with i.
    The positive is v[j, first + n]; the denominator holds v[j, m] for m of other images, those of view i
    too if `own`, and the positive itself if `positive`. Where u and v are one tensor, S is symmetric: a
    tile then serves the anchors in its rows and those in its columns.
    """

    def __init__(
        self, u: Tensor, v: Tensor, mask: Tensor, needed: list[list[bool]] | None, tau: float, *,
        own: bool, positive: bool, first: int = 0, tile: int, gradient: tuple[bool, bool],
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
        joined = max(1, min(k, tile // v.shape[1]))  # views in a tile
        self.groups = [slice(i, min(i + joined, k)) for i in range(0, k, joined)]
        self.split = 4 * tile  # a longer view is cut, and its tiles are computed twice
        rows, columns = (joined * min(x.shape[1], self.split) for x in (u, v))
        self.buffer, self.spare = u.new_empty(rows * columns), u.new_empty(rows * columns)

    def run(self) -> Tensor:
        """The sum of all terms; then `du` and `dv` hold its gradient, as far as it was asked for."""
        wanted = self.du is not None or self.dv is not None
        inside = [(a, list(self._tiles(a, a))) for a in self.groups if self.own or a.stop - a.start > 1]
        kept = None
        for a, tiles in inside:  # first, for the sums inside each anchor's own view
            kept = self._sum(a, a, tiles)
        for a in self.groups:
            for b in self.groups:
                if a == b or (self.symmetric and a.start > b.start) or not self._holds_a_pair(a, b):
                    continue
                tiles = list(self._tiles(a, b))
                e = self._sum(a, b, tiles)
                if wanted:
                    self._multiply(tiles, e)
        if wanted:
            own = self.weights.diagonal(dim1=0, dim2=1)  # (n, K)
            if self.own:  # the negatives of an anchor's own view are in the denominators of all its pairs
                own.copy_(self.do.total(self.weights, 1).T)
            for _, tiles in inside:
                self._multiply(tiles, kept if len(inside) == 1 else None)
        terms = self.do.log(self._denominator(slice(None), slice(None))) - self.positives
        return torch.where(self.mask, terms, 0).sum()

    def _holds_a_pair(self, a: slice, b: slice) -> bool:
        return self.needed is None or any(any(row[b]) for row in self.needed[a])

    def _tiles(self, a: slice, b: slice) -> Iterator[tuple[Part, Part]]:
        n, m = self.u.shape[1], self.v.shape[1]
        for r in range(0, n, self.split):
            for c in range(0, m, self.split):
                if not (self.symmetric and a == b and r > c):
                    yield Part(a, slice(r, min(r + self.split, n))), Part(b, slice(c, min(c + self.split, m)))

    def _sum(self, a: slice, b: slice, tiles: list[tuple[Part, Part]]) -> Tensor | None:
        """Sums and weights of the pairs between two groups of views; returns their tile if there is one alone."""
        for rows, columns in tiles:
            e = self._tile(rows, columns)
            at = self.sums[rows.views, columns.views, rows.images]  # (g, h, rows)
            at.copy_(self.do.join(at, self.do.total(e, 3).transpose(1, 2)))
            if self.symmetric and rows != columns:
                at = self.sums[columns.views, rows.views, columns.images]  # (h, g, columns)
                at.copy_(self.do.join(at, self.do.total(e, 1).transpose(0, 1)))
        for i, j in ((a, b), (b, a)) if self.symmetric and a != b else ((a, b),):
            self.weights[i, j] = self.do.weights(self._denominator(i, j), self.mask[i, j])
        return e if len(tiles) == 1 else None

    def _denominator(self, a: slice, b: slice) -> Tensor:
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

    def _tile(self, rows: Part, columns: Part) -> Tensor:
        """(g, rows, h, columns): exp S or S itself, without the entries that no denominator holds."""
        x, y = rows.of(self.u), columns.of(self.v)
        s = self.buffer[: len(x) * len(y)].view(len(x), len(y))
        torch.addmm(s, x, y.T, beta=0, alpha=1 / self.tau, out=s)
        e = s.view(*rows.shape(), *columns.shape())
        entries, anchors = self._same_image(rows, columns, e)
        self.positives[rows.views, columns.views, anchors] = entries
        if self.symmetric:
            self.positives[columns.views, rows.views, anchors] = entries.transpose(0, 1)
        if not self.positive:
            entries.fill_(-math.inf)
        elif rows.views == columns.views:
            entries.diagonal(dim1=0, dim2=1).fill_(-math.inf)
        return self.do.open(e)

    def _multiply(self, tiles: list[tuple[Part, Part]], e: Tensor | None) -> None:
        """Adds what these tiles give to the gradient; `e` is the tile if it is at hand."""
        for rows, columns in tiles:
            g = self._tile(rows, columns) if e is None else e
            by_row = self.weights[rows.views, columns.views, rows.images].transpose(1, 2)[..., None]
            by_column = None
            if self.symmetric:
                by_column = self.weights[columns.views, rows.views, columns.images].transpose(0, 1)[:, None]
            self.do.weigh(g, by_row, by_column, self.spare[: g.numel()].view(g.shape))
            entries, _ = self._same_image(rows, columns, g)
            entries.sub_(self.mask[rows.views, columns.views].to(g.dtype), alpha=2 if self.symmetric else 1)
            g = g.view(math.prod(rows.shape()), -1)
            if self.du is not None:
                rows.of(self.du).addmm_(g, columns.of(self.v), alpha=1 / self.tau)
            if self.dv is not None and not (self.symmetric and rows == columns):
                columns.of(self.dv).addmm_(g.T, rows.of(self.u), alpha=1 / self.tau)
