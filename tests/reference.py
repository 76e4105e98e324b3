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


def contrastive_at_once(z, pairs, tau, positive_in_denominator, reduction="sum", pair_reduction="sum"):
    """`contrastive` from one array of all similarities, by autograd: equal to the loops, for larger sizes."""
    n = z.shape[1]
    u = z / z.norm(dim=-1, keepdim=True)
    s = torch.einsum("ind,jmd->injm", u, u) / tau
    positive = s.diagonal(dim1=1, dim2=3)  # (K, K, N): i, j, n
    same = torch.eye(n, dtype=torch.bool)[:, None, :]
    negatives = s.masked_fill(same, -math.inf).logsumexp(3).transpose(1, 2)  # (K, K, N)
    denominator = torch.logaddexp(negatives.diagonal().T[:, None], negatives)
    terms = denominator - positive
    if positive_in_denominator:  # l = log(1 + exp l'), without a difference of nearly equal numbers
        terms = torch.nn.functional.softplus(terms, threshold=100)
    total = terms[pairs].sum() / {"sum": 1, "mean_n": n, "mean": 2 * n}[reduction]
    return total / (int(pairs.sum()) / 2 if pair_reduction == "mean" else 1)


def cross(q, keys, pairs, tau, first=0):
    """InfoNCE over the ordered pairs of the graph, anchor by anchor; the sum."""
    total = q.new_zeros(())
    for i, j in pairs.nonzero().tolist():
        for n in range(q.shape[1]):
            s = torch.stack([cosine(q[i, n], key) / tau for key in keys[j]])
            others = torch.arange(len(s)) != first + n
            total = total + torch.log1p(torch.exp(s[others] - s[first + n]).sum())
    return total
