"""The equations of the paper as literal loops in float64: slow, obvious, and the judge of every fast path."""

import math

import torch


def cosine(a, b):
    return torch.dot(a, b) / (a.norm() * b.norm())


def anchor_loss(z, i, j, n, tau, positive_in_denominator):
    """Eq. 1 (l) or Eq. 4 (l') for the anchor z[i, n] and its positive z[j, n]."""
    s_p = cosine(z[i, n], z[j, n]) / tau
    denominator = 0
    for m in range(z.shape[1]):
        if m != n:
            denominator = denominator + torch.exp(cosine(z[i, n], z[i, m]) / tau)
        if m != n or positive_in_denominator:
            denominator = denominator + torch.exp(cosine(z[i, n], z[j, m]) / tau)
    return -torch.log(torch.exp(s_p) / denominator)


def contrastive(z, pairs, tau, positive_in_denominator, reduction="sum", pair_reduction="sum"):
    """Eq. 3 over the pairs i<j of the graph, each Eq. 2: a plain sum over both directions and all images."""
    k, n, _ = z.shape
    total, count = z.new_zeros(()), 0
    for i in range(k):
        for j in range(i + 1, k):
            if not pairs[i, j]:
                continue
            count += 1
            for a in range(n):
                total = total + anchor_loss(z, i, j, a, tau, positive_in_denominator)
                total = total + anchor_loss(z, j, i, a, tau, positive_in_denominator)
    total = total / {"sum": 1, "mean_n": n, "mean": 2 * n}[reduction]
    return total / (count if pair_reduction == "mean" else 1)


def byol(p, t, pairs, reduction="mean", pair_reduction="sum"):
    k, n, _ = p.shape
    total, count = p.new_zeros(()), 0
    for i in range(k):
        for j in range(i + 1, k):
            if not pairs[i, j]:
                continue
            count += 1
            for a in range(n):
                total = total + 2 - 2 * cosine(p[i, a], t[j, a]) + 2 - 2 * cosine(p[j, a], t[i, a])
    total = total / (n if reduction == "mean" else 1)
    return total / (count if pair_reduction == "mean" else 1)


def oracle_case():
    """The deterministic embeddings (K=3, N=4, D=3) whose losses are known as printed numbers."""
    z = [
        [[math.cos(0.7 * n + 0.3 * k), math.sin(0.7 * n + 0.3 * k), 0.5 * k - 0.2 * n] for n in range(4)]
        for k in range(3)
    ]
    z = torch.tensor(z, dtype=torch.float64)
    return z / z.norm(dim=-1, keepdim=True)
