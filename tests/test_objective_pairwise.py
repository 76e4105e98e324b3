"""Any two-view loss over a pair graph, against loops of our own and lightly's losses."""

import pytest
import torch
from lightly import loss as lightly

from ecpp.objective import byol, contrastive, pairs, pairwise


def embeddings(k=4, n=8, d=16, seed=0):
    return torch.randn(k, n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("loss", [
    lightly.NTXentLoss(temperature=0.2), lightly.VICRegLoss(), lightly.BarlowTwinsLoss(),
    lightly.NegativeCosineSimilarity(),
], ids=lambda loss: type(loss).__name__)  # fmt: skip
@pytest.mark.parametrize("name", list(pairs.GRAPHS))
def test_a_loss_of_lightly_over_every_graph(loss, name):
    z = embeddings().requires_grad_()
    graph = pairs.GRAPHS[name](4)
    expected = sum(loss(z[i], z[j]) for i in range(4) for j in range(i + 1, 4) if graph[i, j])
    got = pairwise(loss, z, graph)
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    assert pairwise(loss, z, graph, pair_reduction="mean").item() == pytest.approx(
        expected.item() / pairs.count(graph), rel=1e-6
    )
    a, b = torch.autograd.grad(got, z)[0], torch.autograd.grad(expected, z)[0]
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_nt_xent_over_a_graph_is_the_contrastive_loss():
    z = embeddings().requires_grad_()
    for graph in (None, pairs.core(4)):
        ours = contrastive(z, graph, positive_in_denominator=True)
        theirs = pairwise(lightly.NTXentLoss(temperature=0.2), z, graph)
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
        a, b = torch.autograd.grad(ours, z)[0], torch.autograd.grad(theirs, z)[0]
        assert (a - b).norm() <= 1e-5 * b.norm()


def test_negative_cosine_with_targets_is_byol():
    p, t = embeddings(seed=1), embeddings(seed=2)
    for graph in (None, pairs.multi_crop(4, n_large=1)):
        cosine = pairwise(lightly.NegativeCosineSimilarity(), p, graph, targets=t)
        n_pairs = 6 if graph is None else pairs.count(graph)
        assert byol(p, t, graph).item() == pytest.approx(4 * n_pairs + 2 * cosine.item(), rel=1e-5)


def test_which_calls_are_made():
    calls = []

    def note(a, b):
        calls.append((int(a), int(b)))
        return torch.tensor(1.0)

    views, others = torch.arange(3), torch.arange(10, 13)
    once = [(0, 1), (0, 2), (1, 2)]
    assert pairwise(note, views) == 3
    assert calls == once
    calls.clear()
    assert pairwise(note, views, symmetric=False) == 6
    assert sorted(calls) == sorted(once + [(j, i) for i, j in once])
    calls.clear()
    assert pairwise(note, list(views), pairs.core(3), targets=list(others), pair_reduction="mean") == 2
    assert sorted(calls) == [(0, 11), (0, 12), (1, 10), (2, 10)]


@pytest.mark.parametrize(("call", "hint"), [
    (lambda f, z: pairwise(f, z[:1]), "at least 2 views"),
    (lambda f, z: pairwise(f, z, pairs.full(3)), "boolean"),
    (lambda f, z: pairwise(f, z, pairs.full(4).to("meta")), "on the CPU"),
    (lambda f, z: pairwise(f, z, targets=z[:3]), "targets 3"),
    (lambda f, z: pairwise(f, z, pair_reduction="avg"), "pair_reduction"),
])  # fmt: skip
def test_mistakes_say_what_to_do(call, hint):
    with pytest.raises(ValueError, match=hint):
        call(torch.nn.functional.mse_loss, embeddings())
