"""The losses behind the methods against literal loops in float64, and against lightly's own at two views."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import cosine

from ecpp.objective import barlow, byol, cross, diagnostics, directed, pairs, regularised, vicreg, wmse
from ecpp.objective.whitening import whiten


def two_view_barlow(a, b, redundancy=0.005):
    n, d = a.shape
    a, b = (
        [(x[:, e] - x[:, e].mean()) / (x[:, e].var(correction=0) + 1e-5).sqrt() for e in range(d)]
        for x in (a, b)
    )
    loss = 0
    for e in range(d):
        for f in range(d):
            c = torch.dot(a[e], b[f]) / n
            loss = loss + ((1 - c) ** 2 if e == f else redundancy * c**2)
    return loss


def two_view_vicreg(a, b, invariance=25.0, variance=25.0, covariance=1.0):
    n, d = a.shape
    loss = invariance * sum((a[i] - b[i]).square().sum() for i in range(n)) / (n * d)
    for x in (a, b):
        columns = [x[:, e] - x[:, e].mean() for e in range(d)]
        for e in range(d):
            std = (columns[e].square().sum() / (n - 1) + 1e-4).sqrt()
            loss = loss + variance * (1 - std).clamp(min=0) / (2 * d)
            for f in range(d):
                if e != f:
                    loss = loss + covariance * (torch.dot(columns[e], columns[f]) / (n - 1)) ** 2 / d
    return loss


def two_view_wmse(a, b, shrinkage=1e-6):
    n, d = a.shape
    white = []
    for x in (a, b):
        centred = x - x.mean(dim=0)
        covariance = sum(torch.outer(r, r) for r in centred) / (n - 1)
        mean_variance = sum(covariance[e, e] for e in range(d)) / d
        covariance = (1 - shrinkage) * covariance + shrinkage * mean_variance * torch.eye(d, dtype=x.dtype)
        white.append(centred @ torch.linalg.inv(torch.linalg.cholesky(covariance)).T)
    return sum(2 - 2 * cosine(white[0][i], white[1][i]) for i in range(n)) / n


OBJECTIVES = {barlow: two_view_barlow, vicreg: two_view_vicreg, wmse: two_view_wmse}


def over_pairs(two_view, z, graph, pair_reduction, **options):
    terms = [
        two_view(z[i], z[j], **options) for i in range(len(z)) for j in range(i + 1, len(z)) if graph[i, j]
    ]
    return sum(terms) / (len(terms) if pair_reduction == "mean" else 1)


@st.composite
def problems(draw, more_images_than_dimensions=None):
    """K views of N images in D dimensions, on either side of the switch at N = D, and a random graph."""
    k = draw(st.integers(2, 5))
    wide = draw(st.booleans()) if more_images_than_dimensions is None else more_images_than_dimensions
    n, d = (
        (draw(st.integers(5, 7)), draw(st.integers(2, 4)))
        if wide
        else (draw(st.integers(2, 4)), draw(st.integers(4, 7)))
    )
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.randn(k, n, d, generator=g, dtype=torch.float64) * draw(st.sampled_from([0.3, 2.0])) + 0.7
    upper = torch.rand(k, k, generator=g).triu(1) > draw(st.floats(0, 0.7))
    upper[0, 1] = True
    upper = upper.triu(1)
    return z, upper | upper.T


def same(got, expected, tolerance=1e-10):
    return (got - expected).norm() <= tolerance * max(1.0, float(expected.detach().norm()))


def agree(f, g, z):
    """Value and gradient of two functions of z."""
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    mine, theirs = f(a), g(b)
    assert same(mine, theirs)
    assert same(*(torch.autograd.grad(loss, x)[0] for loss, x in ((mine, a), (theirs, b))), 1e-9)


@pytest.mark.parametrize("objective", [barlow, vicreg])
@settings(max_examples=15)
@given(problem=problems(), everything=st.booleans(), pair_reduction=st.sampled_from(["sum", "mean"]))
def test_value_and_gradient_equal_the_literal_loops(objective, problem, everything, pair_reduction):
    z, graph = problem
    asked, graph = (None, pairs.full(len(z))) if everything else (graph, graph)
    agree(
        lambda x: objective(x, asked, pair_reduction=pair_reduction),
        lambda x: over_pairs(OBJECTIVES[objective], x, graph, pair_reduction),
        z,
    )


@given(problems(more_images_than_dimensions=True), st.booleans(), st.sampled_from(["sum", "mean"]))
def test_wmse_equals_the_literal_loops(problem, everything, pair_reduction):
    z, graph = problem
    asked, graph = (None, pairs.full(len(z))) if everything else (graph, graph)
    agree(
        lambda x: wmse(x, asked, pair_reduction=pair_reduction),
        lambda x: over_pairs(two_view_wmse, x, graph, pair_reduction),
        z,
    )


def test_the_weights_of_the_terms_are_those_of_the_loops():
    z = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for objective, options in (
        (barlow, {"redundancy": 0.3}),
        (vicreg, {"invariance": 3.0, "variance": 2.0, "covariance": 0.7}),
        (wmse, {"shrinkage": 0.2}),
    ):
        expected = over_pairs(OBJECTIVES[objective], z, pairs.core(3), "sum", **options)
        assert same(objective(z, pairs.core(3), **options), expected)


def batch(k=2, n=16, d=32):
    return torch.randn(k, n, d, generator=torch.Generator().manual_seed(n)) * 1.5


@pytest.mark.parametrize(("n", "d"), [(16, 32), (48, 32)])
def test_two_views_agree_with_lightly(n, d):
    from lightly.loss import BarlowTwinsLoss, NegativeCosineSimilarity, VICRegLoss

    z = batch(n=n, d=d)
    assert barlow(z).item() == pytest.approx(BarlowTwinsLoss()(z[0], z[1]).item(), rel=1e-4)
    assert vicreg(z).item() == pytest.approx(VICRegLoss()(z[0], z[1]).item(), rel=1e-5)
    # SimSiam is half of both negative cosines; the regression is 4 + 4 times that.
    p, t, cosine_loss = z, batch(n=n + 1, d=d)[:, :n], NegativeCosineSimilarity()
    simsiam = (cosine_loss(p[0], t[1]) + cosine_loss(p[1], t[0])) / 2
    for objective in (byol, directed.regression):
        assert objective(p, t).item() == pytest.approx(4 + 4 * simsiam.item(), rel=1e-5)


def test_view_terms_of_vicreg_are_lightlys_for_every_pair_of_k_views():
    from lightly.loss import VICRegLoss

    z = batch(k=5)
    expected = sum(VICRegLoss()(z[i], z[j]).item() for i in range(5) for j in range(i + 1, 5))
    assert vicreg(z).item() == pytest.approx(expected, rel=1e-5)


def test_keys_agree_with_the_cross_entropies_of_moco_v3():
    """MoCo v3's own loss is the sum of both directions' cross-entropies, times 2·tau: 4·tau times ours."""
    q, keys, tau = batch(), batch(n=17)[:, :16], 0.3
    q, keys = F.normalize(q, dim=-1), F.normalize(keys, dim=-1)
    labels = torch.arange(16)
    theirs = sum(2 * tau * F.cross_entropy(q[i] @ keys[1 - i].T / tau, labels) for i in (0, 1))
    terms = directed.contrast_terms(q, keys, tau=tau)
    assert 4 * tau * (terms[0, 1] + terms[1, 0]).item() == pytest.approx(theirs.item(), rel=1e-5)


# --- whitening ------------------------------------------------------------------------------------------


def test_whitened_views_have_no_mean_and_the_identity_as_covariance():
    z = batch(k=3, n=200, d=5).double() @ torch.randn(5, 5, dtype=torch.float64) + 3
    white = whiten(z, shrinkage=0.0)
    assert white.mean(dim=1).abs().max() < 1e-10
    for view in white:
        assert torch.allclose(view.T @ view / 199, torch.eye(5, dtype=torch.float64), atol=1e-10)


def test_a_view_that_does_not_vary_teaches_nothing_and_learns_nothing():
    z = torch.cat([torch.full((1, 9, 4), 0.1), batch(k=2, n=9, d=4)]).requires_grad_()
    alone = z.detach()[1:].requires_grad_()
    wmse(z).backward()
    wmse(alone).backward()
    assert z.grad[0].count_nonzero() == 0
    torch.testing.assert_close(z.grad[1:], alone.grad)
    assert whiten(torch.full((2, 9, 4), 0.1)).count_nonzero() == 0


@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
def test_directions_without_variance_cannot_hide_from_whitening(scale):
    """Left as short as they are, they would let the embeddings agree on the few long ones and collapse."""
    lengths = torch.logspace(0, -2, 6)
    z = scale * batch(k=2, n=400, d=6) * lengths
    for view in whiten(z.double()):
        assert torch.allclose(view.T @ view / 399, torch.eye(6, dtype=torch.float64), atol=0.01)
    torch.testing.assert_close(wmse(z), wmse(z / scale), rtol=1e-4, atol=1e-6)


def test_a_collapsed_batch_stays_finite():
    z = torch.ones(2, 8, 4, requires_grad=True)
    for objective in (barlow, vicreg, wmse):
        loss = objective(z + 1e-6 * torch.randn(8, 4))
        (gradient,) = torch.autograd.grad(loss, z)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


# --- what holds for all of them -------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [barlow, vicreg])
@pytest.mark.parametrize("k", [3, 6])
def test_identical_views_multiply_the_gradient_by_the_number_of_pairs(objective, k):
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(k), dtype=torch.float64, requires_grad=True)

    def gradient(views, **options):
        return torch.autograd.grad(objective(x.expand(views, 9, 5), **options), x)[0]

    torch.testing.assert_close(gradient(k), k * (k - 1) / 2 * gradient(2), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient(k, pair_reduction="mean"), gradient(2), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("objective", [barlow, vicreg, wmse])
def test_order_of_views_and_images_does_not_matter(objective):
    z = batch(k=4, n=24, d=6).double()
    base = objective(z)
    assert same(objective(z[torch.randperm(4)]), base)
    assert same(objective(z[:, torch.randperm(24)]), base)


@pytest.mark.parametrize("objective", [barlow, vicreg, wmse])
def test_statistics_are_computed_in_fp32_whatever_the_autocast(objective):
    z = batch(k=4, n=24, d=6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = objective(z.bfloat16())
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(objective(z.bfloat16().double()).item(), rel=1e-4)


def test_distances_do_not_cancel_far_from_the_origin():
    z = batch(k=4, n=6, d=5)
    exact = regularised.distances(z.double(), None)
    assert regularised.distances(z + 1000, None).item() == pytest.approx(exact.item(), rel=1e-3)


@pytest.mark.parametrize(("call", "hint"), [
    (lambda: barlow(torch.randn(4, 4)), "K views, N images, D"),
    (lambda: vicreg(torch.ones(2, 4, 4, dtype=torch.int64)), "floating tensor.*int64"),
    (lambda: vicreg(torch.randn(1, 4, 4)), "at least 2 views"),
    (lambda: directed.contrast_terms(torch.randn(2, 4, 4), torch.randn(2, 4, 4), tau=0), "tau must be"),
    (lambda: barlow(torch.randn(3, 1, 4)), "at least 2 images"),
    (lambda: barlow(torch.randn(3, 4, 4), pair_reduction="avg"), "pair_reduction"),
    (lambda: vicreg(torch.randn(3, 4, 4), pairs.full(4)), "boolean"),
    (lambda: wmse(torch.randn(3, 9, 4), shrinkage=1), "shrinkage must be at least 0 and below 1"),
    (lambda: wmse(torch.randn(3, 4, 4)), "needs more than 4 images.*--batch-size"),
])  # fmt: skip
def test_mistakes_say_what_to_do(call, hint):
    with pytest.raises(ValueError, match=hint):
        call()


# --- directed pairs -------------------------------------------------------------------------------------


@given(problems(), st.sampled_from([(0,), (0, 1), (1,)]), st.sampled_from(["sum", "mean"]))
def test_directed_terms_equal_the_literal_loops(problem, places, pair_reduction):
    p, graph = problem
    graph = graph | pairs.core(len(p))
    g = torch.Generator().manual_seed(1)
    targets = torch.randn(p.shape, generator=g, dtype=torch.float64)[list(places)]
    towards = directed.directions(graph, len(p), places, p.device)
    tau, n = 0.4, p.shape[1]
    regression = contrast = count = 0
    for i in range(len(p)):
        for column, place in enumerate(places):
            if not graph[i, place]:
                continue
            count += 1
            for a in range(n):
                s = [cosine(p[i, a], targets[column, m]) / tau for m in range(n)]
                regression = regression + (2 - 2 * tau * s[a]) / n
                contrast = contrast + (torch.stack(s).logsumexp(dim=0) - s[a]) / (2 * n)
    over = count / 2 if pair_reduction == "mean" else 1
    for terms, expected in (
        (directed.regression_terms(p, targets), regression),
        (directed.contrast_terms(p, targets, tau=tau), contrast),
    ):
        assert same(directed.join(terms, towards, pair_reduction), expected / over)
        shown = directed.per_pair(terms, towards, places)
        assert torch.equal(shown, shown.T)
        assert same(shown.sum() / 2, expected)


def test_directions_to_all_views_are_the_pairs_themselves():
    p, t = batch(k=4), batch(k=4, n=17)[:, :16]
    for graph in (None, pairs.core(4)):
        assert directed.regression(p, t, graph).item() == pytest.approx(byol(p, t, graph).item(), rel=1e-5)


@pytest.mark.parametrize("apart", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("tau", [0.02, 0.1, 1.0])
def test_directed_terms_are_exact_near_convergence_and_where_there_is_no_direction(apart, tau):
    image = batch(k=1, n=40)
    p, t = (image + apart * batch(k=3, n=n)[:, :40] for n in (41, 42))
    p[1, 0] = 0

    def measured(f, *tensors):
        p = tensors[0].clone().requires_grad_()
        value = f(p, *tensors[1:])
        return value.detach(), torch.autograd.grad(value, p)[0]

    for f, expected in (
        (lambda p, t: directed.regression(p, t), lambda p, t: byol(p, t)),
        (
            lambda p, t: directed.join(directed.contrast_terms(p, t, tau=tau), pairs.full(3)),
            lambda p, t: cross(p, t, tau=tau),
        ),
    ):
        got, exact = measured(f, p, t), measured(expected, p.double(), t.double())
        assert got[0].item() == pytest.approx(exact[0].item(), rel=1e-6, abs=1e-30)
        assert (got[1].double() - exact[1]).norm() <= 1e-6 * exact[1].norm() + 1e-30
        assert got[1][1, 0].count_nonzero() == 0


def test_the_regression_lets_the_gradient_into_the_targets():
    p, t = batch().requires_grad_(), batch(n=17)[:, :16].requires_grad_()
    directed.regression(p, t).backward()
    assert t.grad.norm() > 0


# --- diagnostics ----------------------------------------------------------------------------------------


def test_the_share_of_the_positive_is_its_softmax_probability():
    z, keys, tau = batch(k=3, n=5, d=4).double(), batch(k=2, n=5, d=4).double() + 1, 0.3
    own, given_keys = diagnostics.positive_share(z, tau=tau), diagnostics.positive_share(z, keys, tau=tau)
    assert own.shape == (3, 3)
    assert given_keys.shape == (3, 2)

    def share(i, candidates, others):
        total = 0
        for a in range(5):
            e = [math.exp(cosine(z[i, a], c) / tau) for c in candidates]
            rest = sum(math.exp(cosine(z[i, a], z[i, m]) / tau) for m in range(5) if m != a) if others else 0
            total += e[a] / (sum(e) + rest) / 5
        return total

    for i in range(3):
        for j in range(3):
            if i != j:
                assert own[i, j].item() == pytest.approx(share(i, z[j], others=True), rel=1e-9)
        for j in range(2):
            assert given_keys[i, j].item() == pytest.approx(share(i, keys[j], others=False), rel=1e-9)


def test_the_similarity_of_a_pair_is_the_mean_cosine_of_its_images():
    z = batch(k=3, n=5, d=4).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        shown = diagnostics.similarities(z)["pair_similarity"]
    for i in range(3):
        for j in range(3):
            expected = sum(cosine(z[i, a], z[j, a]) for a in range(5)) / 5
            assert shown[i, j].item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_losses_of_the_pairs_are_those_of_their_views_alone():
    z = batch(k=4, n=8, d=6)
    graph = pairs.multi_crop(4)
    shown = diagnostics.per_pair(lambda i, j: vicreg(z[[i, j]]), graph)
    assert torch.equal(shown, shown.T)
    assert torch.equal(shown == 0, ~graph)
    assert shown.triu().sum().item() == pytest.approx(vicreg(z, graph).item(), rel=1e-5)
