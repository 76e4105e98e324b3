"""The contrastive losses in tiles, in parts of a batch, in fp32, and where numbers are extreme."""

import math
from unittest import mock

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_objective import assert_same, problems, value_and_gradient

from ecpp.objective import contrastive, cross, pairs, similarity

REDUCTIONS = st.sampled_from(["mean", "mean_n", "sum"])
SIDES = [1, 2, 3, 4, 6, 512]  # a tile holds up to this many rows, and a view longer than 4 of them is cut


def tiles_of(rows):
    return mock.patch.object(similarity, "tile", return_value=rows)


def relative(a, b):
    return ((a.double() - b).norm() / b.norm().clamp(min=1e-300)).item()


def assert_equal(got, expected, tol):
    """Norm-relative, for the value and each gradient; a value below 1 is compared with 1."""
    assert abs(got[0].double() - expected[0]) <= tol * max(1.0, abs(expected[0].item()))
    for a, b in zip(got[1], expected[1], strict=True):
        assert relative(a, b) <= tol


def embeddings(kind, k, n, d, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(k, n, d, generator=g)
    image = torch.randn(1, n, d, generator=g)
    return {"random": z, "close": image + 0.3 * z, "equal": image.repeat(k, 1, 1)}[kind]


@settings(max_examples=25)
@given(problems(max_k=4, max_n=9), st.sampled_from(SIDES), st.sampled_from([0.01, 0.2, 1.0]), st.booleans(),
       REDUCTIONS, st.sampled_from(["sum", "mean"]))  # fmt: skip
def test_every_tiling_equals_the_literal_loops(problem, side, tau, positive, reduction, pair_reduction):
    z, graph, _ = problem
    options = {"reduction": reduction, "pair_reduction": pair_reduction}
    with tiles_of(side):
        got = value_and_gradient(
            lambda x: contrastive(x, graph, tau=tau, positive_in_denominator=positive, **options), z
        )
    assert_same(
        got, value_and_gradient(lambda x: reference.contrastive(x, graph, tau, positive, **options), z)
    )


@given(problems(max_k=6, max_n=30), st.sampled_from(SIDES), st.floats(0.01, 1), st.booleans(),
       st.sampled_from(["full", "core", "multi-crop", "any"]))  # fmt: skip
def test_every_tiling_equals_one_array_of_similarities(problem, side, tau, positive, graph):
    z, any_graph, _ = problem
    graph = any_graph if graph == "any" else pairs.GRAPHS[graph](max(len(z), 3))[: len(z), : len(z)]
    with tiles_of(side):
        got = value_and_gradient(
            lambda x: contrastive(x, graph, tau=tau, positive_in_denominator=positive), z
        )
        value_alone = contrastive(z, graph, tau=tau, positive_in_denominator=positive)
    expected = value_and_gradient(lambda x: reference.contrastive_at_once(x, graph, tau, positive, "mean"), z)
    # At the smallest tau a gradient that is nearly 0 is a difference of numbers a hundred times larger.
    assert_equal(got, expected, 1e-12 if tau > 0.1 else 1e-11)
    assert value_alone == got[0]


@pytest.mark.parametrize("side", [4, 40, 512])
@pytest.mark.parametrize("tau", [0.01, 1 / 64, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["random", "close", "equal"])
def test_fp32_against_float64(kind, tau, side):
    """Small and delicate problems are computed in float64, the others in fp32: to 1e-6 all of them."""
    for seed, (k, n, d), graph, positive in (
        (0, (4, 33, 64), None, False), (1, (4, 33, 64), None, True),
        (2, (3, 17, 256), pairs.core(3), False), (3, (5, 20, 128), pairs.multi_crop(5), True),
        (4, (8, 65, 16), pairs.core(8), True), (5, (2, 130, 32), None, False),
    ):  # fmt: skip
        z = embeddings(kind, k, n, d, seed)
        full = pairs.full(k) if graph is None else graph
        with tiles_of(side):
            got = value_and_gradient(
                lambda x, g=graph, p=positive: contrastive(x, g, tau=tau, positive_in_denominator=p), z
            )
        expected = value_and_gradient(
            lambda x, g=full, p=positive: reference.contrastive_at_once(x, g, tau, p, "mean"), z.double()
        )
        assert_equal(got, expected, 1e-6)


@pytest.mark.parametrize("side", [2, 512])
@pytest.mark.parametrize("positive", [True, False])
def test_gradcheck(positive, side):
    z = torch.randn(3, 10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with tiles_of(side):
        f = lambda x: contrastive(x, pairs.core(3), positive_in_denominator=positive)  # noqa: E731
        assert torch.autograd.gradcheck(f, z.requires_grad_())
        keys = z.detach().flip(1)  # a copy
        assert torch.autograd.gradcheck(lambda x: cross(x, keys), z)


@pytest.mark.parametrize("side", [1, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.001, 0.01, 1 / 64, 0.2, 1.0])
@pytest.mark.parametrize("positive", [True, False])
def test_extreme_embeddings_stay_finite(positive, tau, dtype, side):
    e = torch.eye(6)
    zero = torch.randn(3, 6, 6)
    zero[1, 2] = 0
    zero[2] = 0
    extremes = {
        "the same": torch.ones(3, 6, 6), "identical views": torch.stack([e, e]), "opposite": torch.stack([e, -e]),
        "two opposite lines": torch.ones(2, 6, 6) * torch.tensor([1.0, -1] * 3)[:, None], "zero": zero,
        "all zero": torch.zeros(2, 6, 6), "tiny": e.expand(2, 6, 6) * 1e-30, "huge": e.expand(2, 6, 6) * 1e15,
    }  # fmt: skip
    for what, z in extremes.items():
        with tiles_of(side):
            value, (gradient,) = value_and_gradient(
                lambda x: contrastive(x, tau=tau, positive_in_denominator=positive), z.to(dtype)
            )
        assert torch.isfinite(value), what
        assert torch.isfinite(gradient).all(), what
        assert (gradient[z.norm(dim=-1) < 1e-12] == 0).all(), what


@pytest.mark.parametrize("side", [1, 3, 512])
@pytest.mark.parametrize("k", [3, 8])
def test_identical_views_multiply_the_gradient_in_every_tiling(k, side):
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    with tiles_of(side):
        _, (many,) = value_and_gradient(lambda z: contrastive(z.expand(k, 7, 5)), x)
        _, (two,) = value_and_gradient(lambda z: contrastive(z.expand(2, 7, 5)), x)
    assert relative(many, k * (k - 1) / 2 * two) < 1e-12


@given(problems(max_k=4, max_n=12), st.integers(1, 4), st.sampled_from(SIDES), st.booleans(),
       st.sampled_from([0.001, 0.05, 0.5]))  # fmt: skip
def test_the_losses_of_all_processes_add_up_to_that_of_the_batch(problem, ranks, side, positive, tau):
    z, graph, _ = problem
    options = {"tau": tau, "positive_in_denominator": positive}

    def in_parts(x):
        starts = range(0, x.shape[1], -(-x.shape[1] // ranks))
        parts = zip(starts, x.split(-(-x.shape[1] // ranks), dim=1), strict=True)
        return sum(contrastive(part, graph, everyone=x, first=first, **options) for first, part in parts)

    expected = value_and_gradient(lambda x: contrastive(x, graph, **options), z)
    with tiles_of(side):
        assert_equal(value_and_gradient(in_parts, z), expected, 1e-12 if tau > 0.01 else 1e-11)


@settings(max_examples=25)
@given(problems(max_k=4, max_n=9), st.sampled_from(SIDES), st.sampled_from([0.01, 0.2]))
def test_cross_equals_the_literal_loops(problem, side, tau):
    q, graph, g = problem
    keys = torch.randn(q.shape, generator=g, dtype=q.dtype)
    with tiles_of(side):
        got = value_and_gradient(lambda x: cross(x, keys, graph, tau=tau, reduction="sum"), q)
        last = cross(q[:, 1:], keys, graph, tau=tau, reduction="sum", first=1)
    assert_equal(got, value_and_gradient(lambda x: reference.cross(x, keys, graph, tau), q), 1e-12)
    assert last.item() == pytest.approx(reference.cross(q[:, 1:], keys, graph, tau, first=1).item(), abs=1e-9)


def test_cross_with_two_views_is_the_loss_of_moco_v3():
    g = torch.Generator().manual_seed(0)
    q, keys = torch.randn(2, 16, 8, generator=g), torch.randn(2, 16, 8, generator=g).requires_grad_()
    a, b = torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(keys, dim=-1)
    labels = torch.arange(16)
    expected = sum(torch.nn.functional.cross_entropy(a[i] @ b[1 - i].T / 0.2, labels) for i in (0, 1))
    got = cross(q.requires_grad_(), keys, tau=0.2, reduction="mean_n")
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    got.backward()
    assert keys.grad is None


def test_a_second_derivative_is_refused():
    z = torch.randn(2, 4, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="once, not twice"):
        torch.autograd.grad(contrastive(z), z, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_gradient_has_the_type_of_the_embeddings_and_autocast_changes_nothing(dtype):
    z = torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    plain = value_and_gradient(contrastive, z)
    leaf = z.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrastive(leaf)
        loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert leaf.grad.dtype == dtype
    assert torch.equal(loss, plain[0])
    assert torch.equal(leaf.grad, plain[1][0])


def test_embeddings_need_not_lie_in_order():
    z = torch.randn(6, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for other in (z.transpose(0, 1), z.permute(2, 1, 0), z[:1].expand(6, 3, 5), z.flip(2)[:, :, ::2]):
        with tiles_of(1):
            got = value_and_gradient(contrastive, other)
        assert_equal(got, value_and_gradient(contrastive, other.contiguous()), 1e-12)


@pytest.mark.parametrize("side", [2, 512])
def test_compiled_it_says_the_same(side):
    z = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: 2 * contrastive(x * 1.5, positive_in_denominator=True), backend="aot_eager"
    )
    with tiles_of(side):
        got = value_and_gradient(compiled, z)
        expected = value_and_gradient(lambda x: 2 * contrastive(x * 1.5, positive_in_denominator=True), z)
    assert_equal(got, expected, 1e-6)
    with_graph = torch.compile(lambda x: contrastive(x, pairs.core(4)), backend="aot_eager")
    assert with_graph(z).item() == pytest.approx(contrastive(z, pairs.core(4)).item(), rel=1e-6)


def test_no_number_is_read_back_from_a_gpu():
    """A fake GPU tensor has no values: whatever reads one raises. The gradient is computed with the value."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), tiles_of(4):
        z = torch.empty(3, 20, 8, device="cuda", requires_grad=True)
        graph = torch.empty(3, 3, device="cuda", dtype=torch.bool)
        assert contrastive(z, graph, pair_reduction="mean").requires_grad
        assert cross(z, z.detach(), graph, tau=0.01).requires_grad
        with pytest.raises(RuntimeError):
            graph.tolist()


def test_what_cannot_be_learnt_or_measured_is_no_number_and_no_silence():
    z = torch.randn(2, 70, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"cannot be learned.*float\(tau\)"):
        contrastive(z, tau=torch.nn.Parameter(torch.tensor(0.2)))
    assert contrastive(z * 1e20).isnan()  # longer than fp32 can measure; not what a collapse looks like


@pytest.mark.parametrize(("call", "hint"), [
    (lambda z: contrastive(z, everyone=z[:2]), "3 views"),
    (lambda z: contrastive(z, everyone=z[:, :3]), "must lie within"),
    (lambda z: contrastive(z[:, :2], everyone=z, first=3), "must lie within"),
    (lambda z: contrastive(z[:, :1], everyone=z[:, :1]), "at least 2 images"),
    (lambda z: contrastive(z, first=2), "everyone"),
    (lambda z: contrastive(z, everyone=z.long()), "everyone must be a floating tensor.*int64"),
    (lambda z: contrastive(z.tolist()), "z must be a floating tensor.*a list"),
    (lambda z: contrastive(z, [[False, True], [True, False]]), "pairs must be a boolean"),
    (lambda z: cross(z[:, :0], z), "q must be a floating tensor"),
    (lambda z: cross(z, z[:, :, :2]), "keys must be"),
    (lambda z: cross(z, z, tau=-math.inf), "tau"),
    (lambda z: cross(z, z, reduction="all"), "reduction"),
])  # fmt: skip
def test_mistakes_say_what_to_do(call, hint):
    with pytest.raises(ValueError, match=hint):
        call(torch.randn(3, 4, 4))
