import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from ecpp.objective import byol, contrastive, pairs


@st.composite
def problems(draw, max_k=5, max_n=5):
    """Random K, N, D and pair graph, with float64 embeddings of random length."""
    k, n, d = draw(st.integers(2, max_k)), draw(st.integers(2, max_n)), draw(st.integers(2, 8))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.randn(k, n, d, generator=g, dtype=torch.float64) * 3
    upper = torch.rand(k, k, generator=g).triu(1) > draw(st.floats(0, 0.7))
    upper[0, 1] = True
    upper = upper.triu(1)
    return z, upper | upper.T, g


def value_and_gradient(f, *tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    loss = f(*leaves)
    return loss.detach(), torch.autograd.grad(loss, leaves)


def assert_same(got, expected, tol=1e-12):
    for a, b in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
        assert (a - b).norm() <= tol * max(1.0, b.norm().item())


@given(
    problems(),
    st.floats(0.05, 1),
    st.booleans(),
    st.sampled_from(["mean", "mean_n", "sum"]),
    st.sampled_from(["sum", "mean"]),
)
def test_contrastive_equals_the_literal_loops(problem, tau, positive, reduction, pair_reduction):
    z, graph, _ = problem
    options = {"reduction": reduction, "pair_reduction": pair_reduction}
    got = value_and_gradient(
        lambda x: contrastive(x, graph, tau=tau, positive_in_denominator=positive, **options), z
    )
    expected = value_and_gradient(lambda x: reference.contrastive(x, graph, tau, positive, **options), z)
    assert_same(got, expected)


@given(problems(), st.sampled_from(["mean", "sum"]), st.sampled_from(["sum", "mean"]), st.booleans())
def test_byol_equals_the_literal_loops(problem, reduction, pair_reduction, use_full):
    p, graph, g = problem
    t = torch.randn(p.shape, generator=g, dtype=torch.float64)
    options = {"reduction": reduction, "pair_reduction": pair_reduction}
    asked, graph = (None, pairs.full(len(p))) if use_full else (graph, graph)
    got = value_and_gradient(lambda x: byol(x, t, asked, **options), p)
    expected = value_and_gradient(lambda x: reference.byol(x, t, graph, **options), p)
    assert_same(got, expected)


@given(problems(), st.floats(0.01, 1), st.booleans(), st.sampled_from(["mean", "mean_n", "sum"]),
       st.sampled_from(["sum", "mean"]), st.sampled_from([0.01, 0.3, 10]))  # fmt: skip
def test_fp32_equals_the_literal_loops_in_float64(problem, tau, positive, reduction, pair_reduction, apart):
    """Relative to each norm itself, however near to convergence: views `apart` from one another."""
    z, graph, g = problem
    z = (z[:1] + apart * torch.randn(z.shape, generator=g)).float()
    options = {"reduction": reduction, "pair_reduction": pair_reduction}
    got = value_and_gradient(
        lambda x: contrastive(x, graph, tau=tau, positive_in_denominator=positive, **options), z
    )
    assert_fp32(
        got,
        value_and_gradient(lambda x: reference.contrastive(x, graph, tau, positive, **options), z.double()),
    )
    options["reduction"] = "sum" if reduction == "sum" else "mean"
    t = z[:1] + apart * torch.randn(z.shape, generator=g)
    got = value_and_gradient(lambda x: byol(x, t, graph, **options), z)
    expected = value_and_gradient(lambda x: reference.byol(x, t.double(), graph, **options), z.double())
    assert_fp32(got, expected)


def assert_fp32(got, expected):
    """To 1e-6 of each norm, but for what a loop in float64 rounds itself: its log of a number near 1."""
    for a, b in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
        assert a.dtype == torch.float32
        assert (a.double() - b).norm() <= 1e-6 * b.norm() + 1e-13


def test_printed_numbers_of_the_deterministic_case():
    z = reference.oracle_case()
    for positive, single, total in (
        (True, {(0, 1): 7.45946, (0, 2): 17.314068, (1, 2): 7.890678}, 32.664206),
        (False, {(0, 1): 3.181376, (0, 2): 16.199724, (1, 2): 3.933576}, 23.314677),
    ):
        for (i, j), expected in single.items():
            got = contrastive(z[[i, j]], positive_in_denominator=positive, reduction="sum")
            assert got.item() == pytest.approx(expected, abs=1e-6)
        got = contrastive(z, positive_in_denominator=positive, reduction="sum")
        assert got.item() == pytest.approx(total, abs=1e-6)
    assert byol(z, z).item() == pytest.approx(3.041083, abs=1e-6)


@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_equal_embeddings_give_the_log_of_the_number_of_terms(tau):
    z = torch.ones(2, 64, 8, dtype=torch.float64)
    assert contrastive(z, tau=tau, positive_in_denominator=True).item() == pytest.approx(math.log(127))
    assert contrastive(z, tau=tau).item() == pytest.approx(math.log(126))


def test_two_orthogonal_images():
    z = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    l_vanilla = contrastive(z, positive_in_denominator=True).item()
    assert l_vanilla == pytest.approx(math.log(1 + 2 * math.exp(-5)), abs=1e-12)
    assert contrastive(z).item() == pytest.approx(-5 + math.log(2), abs=1e-12)


def test_two_views_agree_with_lightly():
    from lightly.loss import DCLLoss, NTXentLoss

    z = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(1))
    nt_xent = NTXentLoss(temperature=0.2)(z[0], z[1])
    assert contrastive(z, positive_in_denominator=True).item() == pytest.approx(nt_xent.item(), rel=1e-5)
    # Both average over the 2N anchors, as "mean" does: the constant between ours and theirs is 1.
    dcl = DCLLoss(temperature=0.2)(z[0], z[1])
    assert contrastive(z).item() == pytest.approx(dcl.item(), rel=1e-5)


@given(problems(), st.floats(0.05, 1))
def test_invariances(problem, tau):
    z, _, g = problem
    k, n, _ = z.shape
    base = contrastive(z, tau=tau)
    same = {
        "images": z[:, torch.randperm(n, generator=g)],
        "views": z[torch.randperm(k, generator=g)],
        "length": z * (torch.rand(k, n, 1, generator=g, dtype=z.dtype) + 0.1),
    }
    for what, other in same.items():
        assert contrastive(other, tau=tau).item() == pytest.approx(base.item(), rel=1e-9, abs=1e-9), what
    by_pair = [contrastive(z[[i, j]], tau=tau) for i in range(k) for j in range(i + 1, k)]
    assert sum(by_pair).item() == pytest.approx(base.item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("k", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("positive", [True, False])
def test_identical_views_multiply_the_gradient_by_the_number_of_pairs(k, positive):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(k), dtype=torch.float64, requires_grad=True)

    def gradient(views, **options):
        loss = contrastive(x.expand(views, 6, 5), positive_in_denominator=positive, **options)
        return torch.autograd.grad(loss, x)[0]

    torch.testing.assert_close(gradient(k), k * (k - 1) / 2 * gradient(2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(k, pair_reduction="mean"), gradient(2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("k", "full", "multi_crop", "core"), [(2, 1, 1, 1), (3, 3, 3, 2), (4, 6, 5, 3),
                                                               (6, 15, 9, 5), (8, 28, 13, 7)])  # fmt: skip
def test_pair_graphs_have_the_counts_of_table_1(k, full, multi_crop, core):
    counts = {pairs.full: full, pairs.multi_crop: multi_crop, pairs.core: core}
    for graph, expected in counts.items():
        m = graph(k)
        assert m.dtype == torch.bool
        assert torch.equal(m, m.T)
        assert not m.diagonal().any()
        assert pairs.count(m) == expected
    if k <= 3:
        assert torch.equal(pairs.full(k), pairs.multi_crop(k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_is_computed_in_fp32_whatever_the_autocast(dtype):
    z = torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = contrastive(z.double(), tau=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = contrastive(z, tau=0.05)
        assert byol(z, z).dtype == torch.float32
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("positive", [True, False])
def test_extreme_cosines_stay_finite(positive):
    e = torch.eye(4)
    for z in (torch.stack([e, e]), torch.stack([e, -e]), torch.ones(3, 4, 4)):
        z = z.clone().requires_grad_()
        loss = contrastive(z, tau=0.01, positive_in_denominator=positive)
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(z.grad).all()


def test_no_gradient_reaches_the_target():
    p = torch.randn(3, 4, 5, requires_grad=True)
    t = torch.randn(3, 4, 5, requires_grad=True)
    byol(p, t).backward()
    assert p.grad is not None
    assert t.grad is None


@pytest.mark.parametrize(("call", "hint"), [
    (lambda: contrastive(torch.randn(2, 1, 4)), "at least 2 images"),
    (lambda: contrastive(torch.randn(4, 4)), "K views, N images, D"),
    (lambda: contrastive(torch.randn(1, 4, 4)), "no pair"),
    (lambda: contrastive(torch.randn(2, 4, 4), tau=0), "tau"),
    (lambda: contrastive(torch.randn(2, 4, 4), tau=math.nan), "tau"),
    (lambda: contrastive(torch.randn(2, 4, 4), reduction="avg"), "reduction"),
    (lambda: contrastive(torch.randn(2, 4, 4), pair_reduction="avg"), "pair_reduction"),
    (lambda: contrastive(torch.ones(2, 4, 4, dtype=torch.int64)), "floating"),
    (lambda: contrastive(torch.randn(3, 4, 4), pairs.full(4)), "boolean"),
    (lambda: contrastive(torch.randn(3, 4, 4), torch.ones(3, 3, dtype=torch.bool)), "empty diagonal"),
    (lambda: contrastive(torch.randn(3, 4, 4), torch.zeros(3, 3, dtype=torch.bool)), "no pair"),
    (lambda: byol(torch.randn(3, 4, 4), torch.randn(2, 4, 4)), "must be of one shape"),
    (lambda: byol(torch.randn(3, 4, 4), torch.randn(3, 4, 4), reduction="mean_n"), "reduction"),
    (lambda: pairs.full(1), "two views"),
    (lambda: pairs.multi_crop(4, n_large=5), "n_large"),
])  # fmt: skip
def test_mistakes_say_what_to_do(call, hint):
    with pytest.raises(ValueError, match=hint):
        call()
