"""How the sums of exponentials of a contrastive loss are kept: as they are, or as logarithms."""

import math

import torch
from torch import Tensor


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
    def exp(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def weights(denominator: Tensor, mask: Tensor) -> Tensor:
        return mask / denominator

    @staticmethod
    def share(a: Tensor, weights: Tensor) -> Tensor:
        return a * weights

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
    def exp(x: Tensor) -> Tensor:
        return x

    @staticmethod
    def weights(denominator: Tensor, mask: Tensor) -> Tensor:
        return (-denominator).masked_fill(~mask, -math.inf)

    @staticmethod
    def share(a: Tensor, weights: Tensor) -> Tensor:
        return (a + weights).exp()

    @staticmethod
    def weigh(s: Tensor, rows: Tensor, columns: Tensor | None, spare: Tensor) -> None:
        if columns is None:
            s.add_(rows).exp_()
        else:
            torch.add(s, rows, out=spare).exp_()
            s.add_(columns).exp_().add_(spare)
