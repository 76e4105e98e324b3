import copy
import itertools
import math

import pytest
import reference
import torch
from torch import nn

from ecpp import objective
from ecpp.method import BYOL, SimCLR
from ecpp.method.parts import encode, project
from ecpp.model import mlp
from ecpp.model.momentum import ema_tau
from ecpp.objective import pairs
from ecpp.objective.diagnostics import similarities
from ecpp.views import View, ViewBatch, ViewPlan, draw, plan, render

N = 5


class Counting(nn.Module):
    """A tiny encoder that notes what it is given."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.calls = []

    def forward(self, x):
        self.calls.append(tuple(x.shape))
        return self.net(x)


def batch(k=4, large=16, small=10, seed=0, n=N):
    p = plan(k, large=large, small=small)
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 3, 20, 20), generator=g, dtype=torch.uint8)
    samples = torch.arange(n)
    return render(p, images, samples, draw(p, samples, torch.tensor([[20, 20]] * n), seed=seed, epoch=0))


def simclr(**options):
    torch.manual_seed(0)
    return SimCLR(Counting(), mlp(8, 8, 6, layers=2, final_bn=True), **options)


def byol(**options):
    torch.manual_seed(0)
    projector, predictor = (mlp(i, 8, 6, layers=2, final_bn=False) for i in (8, 6))
    return BYOL(Counting(), projector, predictor, **options)


def stir(module, seed=1):
    """Other parameters than those that it was built with."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.3)


def by_hand(encoder, head, b, n=N):
    """Embeddings (K, N, D): a pass over all large views, one over all small ones, then the head over all."""
    large = encoder(torch.cat([b.view(k) for k in b.order[0]]))
    h = [*large.split(n)]
    if len(b.order) > 1:
        h += encoder(torch.cat([b.view(k) for k in b.order[1]])).split(n)
    return torch.stack(head(torch.cat(h)).split(n))


# --- encode and project ---------------------------------------------------------------------------------


class Brightness(nn.Module):
    """The mean of every image, so that its place shows."""

    def forward(self, x):
        return x.mean(dim=(1, 2, 3))[:, None]


@pytest.mark.parametrize("bn_mode", ["per_group", "per_view"])
def test_views_come_back_in_the_order_of_the_plan(bn_mode):
    sizes = (8, 16, 8, 12, 16)
    p = ViewPlan(tuple(View(s) for s in sizes), mean=(0.0,) * 3, std=(1.0,) * 3)
    assert [places for _, places in p.groups] == [(1, 4), (3,), (0, 2)]
    groups = []
    for size, places in p.groups:
        values = torch.tensor([10.0 * k + n for k in places for n in range(3)])
        groups.append(values[:, None, None, None].expand(-1, 3, size, size))
    b = ViewBatch(tuple(groups), tuple(places for _, places in p.groups), torch.arange(3))
    expected = 10 * torch.arange(5.0)[:, None] + torch.arange(3.0)
    assert torch.allclose(encode(Brightness(), b, bn_mode)[..., 0], expected)
    for k in range(5):
        assert torch.allclose(b.view(k).mean(dim=(1, 2, 3)), expected[k])


def test_rendered_views_keep_their_places_through_the_encoder():
    p = ViewPlan(tuple(View(s, flip_p=0.0) for s in (8, 16, 8, 16)), mean=(0.0,) * 3, std=(1.0,) * 3)
    images = torch.linspace(0, 1, 3)[:, None, None, None].expand(-1, 3, 20, 20)
    samples = torch.tensor([4, 2, 9])
    b = render(p, images, samples, draw(p, samples, torch.tensor([[20, 20]] * 3), seed=0, epoch=0))
    assert torch.allclose(
        encode(Brightness(), b)[..., 0], torch.tensor([[0, 0.5, 1]]).expand(4, 3), atol=1e-5
    )


def test_one_forward_pass_per_resolution_or_one_per_view():
    for options, calls in (
        ({}, [(2 * N, 3, 16, 16), (4 * N, 3, 10, 10)]),
        ({"bn_mode": "per_view"}, [(N, 3, 16, 16)] * 2 + [(N, 3, 10, 10)] * 4),
    ):
        for make in (simclr, byol):
            method = make(**options)
            method(batch(k=6))
            assert method.encoder.calls == calls
            if make is byol:
                assert method.target.encoder.network.calls == calls
    method = simclr()
    method(batch(k=6, small=16))
    assert method.encoder.calls == [(6 * N, 3, 16, 16)]


def test_batchnorm_averages_over_a_resolution_or_over_a_view():
    b = batch()
    encoder = Counting()
    groups, views = (encode(copy.deepcopy(encoder), b, mode) for mode in ("per_group", "per_view"))
    for k in range(4):
        assert torch.allclose(views[k], copy.deepcopy(encoder)(b.view(k)), atol=1e-6)
    for images, places in zip(b.groups, b.order, strict=True):
        together = copy.deepcopy(encoder)(images).split(N)
        for k, expected in zip(places, together, strict=True):
            assert torch.allclose(groups[k], expected, atol=1e-6)
    assert (groups - views).abs().max() > 0.01
    encoder.eval()
    groups, views = (encode(encoder, b, mode) for mode in ("per_group", "per_view"))
    assert torch.allclose(groups, views, atol=1e-6)


def test_a_head_sees_all_views_at_once():
    head = mlp(8, 8, 6, layers=2, final_bn=True)
    h = torch.randn(4, N, 8)
    z = project(copy.deepcopy(head), h)
    assert z.shape == (4, N, 6)
    assert torch.allclose(z, torch.stack(head(torch.cat(list(h))).split(N)), atol=1e-6)


# --- SimCLR ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "options"), [
    (None, {}),
    (pairs.core, {"tau": 0.5}),
    (pairs.multi_crop, {"positive_in_denominator": True, "pair_reduction": "mean"}),
    (pairs.full, {"reduction": "sum", "bn_mode": "per_view"}),
])  # fmt: skip
def test_simclr_is_the_papers_loss_of_the_embeddings(graph, options):
    b = batch()
    method = simclr(pairs=graph and graph(4), **options)
    twin = copy.deepcopy(method)
    loss, metrics = method(b)
    if options.get("bn_mode") == "per_view":
        z = torch.stack(twin.projector(torch.cat([twin.encoder(b.view(k)) for k in range(4)])).split(N))
    else:
        z = by_hand(twin.encoder, twin.projector, b)
    expected = reference.contrastive(
        z.double(),
        pairs.full(4) if graph is None else graph(4),
        options.get("tau", 0.2),
        options.get("positive_in_denominator", False),
        options.get("reduction", "mean"),
        options.get("pair_reduction", "sum"),
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    for p, q in zip(method.parameters(), twin.parameters(), strict=True):
        assert (p.grad - q.grad).norm() <= 1e-3 * max(q.grad.norm(), 1e-3)
    for name, expected in similarities(z).items():
        assert torch.allclose(metrics[name], expected, atol=1e-4), name


def test_the_pair_graph_decides_what_is_learned():
    b = batch()
    losses = {name: simclr(pairs=graph(4))(b).loss.item() for name, graph in pairs.GRAPHS.items()}
    assert len(set(losses.values())) == 3
    assert simclr()(b).loss.item() == pytest.approx(losses["full"], rel=1e-6)
    assert losses["core"] < losses["multi-crop"] < losses["full"]  # sums of 3, 5 and 6 pairs
    z = encode(simclr().encoder, b)
    z = project(simclr().projector, z)
    terms = [objective.contrastive(z[[0, j]]).item() for j in (1, 2, 3)]
    assert losses["core"] == pytest.approx(sum(terms), rel=1e-5)


def test_the_pair_graph_is_no_part_of_the_checkpoint():
    for make in (simclr, byol):
        assert not any("pairs" in k for k in make(pairs=pairs.core(4)).state_dict())
        make().load_state_dict(make(pairs=pairs.core(4)).state_dict(), strict=True)


def test_after_step_leaves_simclr_alone():
    method = simclr()
    before = copy.deepcopy(method.state_dict())
    method.after_step(0.5)
    assert all(torch.equal(v, before[k]) for k, v in method.state_dict().items())


# --- BYOL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "options"), [
    (None, {}), (pairs.core, {}), (pairs.multi_crop, {"pair_reduction": "mean"}),
])  # fmt: skip
def test_byol_predicts_the_target_of_every_paired_view(graph, options):
    b = batch()
    method = byol(pairs=graph and graph(4), **options)
    stir(method.target.encoder)
    stir(method.target.projector, seed=2)
    twin = copy.deepcopy(method)
    loss, metrics = method(b)
    z = by_hand(twin.encoder, twin.projector, b)
    p = torch.stack(twin.predictor(torch.cat(list(z))).split(N))
    t = by_hand(twin.target.encoder.network, twin.target.projector.network, b).detach()
    asked = pairs.full(4) if graph is None else graph(4)
    expected = reference.byol(p.double(), t.double(), asked, "mean", options.get("pair_reduction", "sum"))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    for x, y in zip(method.parameters(), twin.parameters(), strict=True):
        if y.requires_grad:
            # The gradient of a bias before BatchNorm is 0 but for rounding.
            assert (x.grad - y.grad).norm() <= 1e-3 * max(y.grad.norm(), 1e-2)
    for name, expected in similarities(z).items():
        assert torch.allclose(metrics[name], expected, atol=1e-4), name


def sides(method):
    """The pairs (online, target) of networks."""
    return (
        (method.encoder, method.target.encoder.network),
        (method.projector, method.target.projector.network),
    )


def test_a_target_starts_as_a_copy_and_gets_no_gradient():
    method = byol()
    for online, target in sides(method):
        for (name, p), (_, q) in zip(online.named_parameters(), target.named_parameters(), strict=True):
            assert torch.equal(p, q), name
            assert p.data_ptr() != q.data_ptr()
    method(batch()).loss.backward()
    for online, target in sides(method):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in online.parameters())
        assert all(q.grad is None and not q.requires_grad for q in target.parameters())
    assert all(p.grad is not None for p in method.predictor.parameters())


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_the_target_follows_by_the_tau_of_the_moment(progress):
    method = byol(ema=0.9)
    for online, _ in sides(method):
        stir(online)
    before = [[q.clone() for q in target.parameters()] for _, target in sides(method)]
    online_before = [p.clone() for online, _ in sides(method) for p in online.parameters()]
    method.after_step(progress)
    tau = ema_tau(0.9, progress)
    assert tau == pytest.approx(
        {0.0: 0.9, 0.3: 1 - 0.1 * (math.cos(0.3 * math.pi) + 1) / 2, 1.0: 1.0}[progress]
    )
    for old, (online, target) in zip(before, sides(method), strict=True):
        for was, q, p in zip(old, target.parameters(), online.parameters(), strict=True):
            assert torch.allclose(q, tau * was + (1 - tau) * p, atol=1e-6)
            assert torch.equal(q, was) is (progress == 1.0)
    after = [p for online, _ in sides(method) for p in online.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(online_before, after, strict=True))


def test_a_network_that_follows_itself_stays():
    method = byol(ema=0.5)
    method.after_step(0.0)
    for online, target in sides(method):
        for p, q in zip(online.parameters(), target.parameters(), strict=True):
            assert torch.equal(p, q)


def test_the_optimizer_never_sees_the_target():
    method = byol()
    trained = {id(p) for p in method.parameters() if p.requires_grad}
    assert trained == {
        id(p) for m in (method.encoder, method.projector, method.predictor) for p in m.parameters()
    }


# --- what is looked at ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [simclr, byol])
def test_metrics_carry_no_gradient(make):
    loss, metrics = make()(batch())
    assert loss.requires_grad
    assert set(metrics) >= {"embedding_std", "positive_similarity", "negative_similarity", "pair_loss"}
    for name, value in metrics.items():
        assert value.shape == ((4, 4) if name.startswith("pair_") else ())
        assert not value.requires_grad


@pytest.mark.parametrize("k", [2, 4])
def test_diagnostics_are_the_naive_loops(k):
    z = torch.randn(k, N, 6, generator=torch.Generator().manual_seed(k)) * 3 + 0.5
    unit = z / z.norm(dim=-1, keepdim=True)
    together, apart = [], []
    for i, j, n, m in itertools.product(range(k), range(k), range(N), range(N)):
        cosine = float(unit[i, n] @ unit[j, m])
        if n == m and i != j:
            together.append(cosine)
        elif n != m:
            apart.append(cosine)
    spread = [torch.stack([unit[i, n, d] for i in range(k) for n in range(N)]).std() for d in range(6)]
    got = similarities(z)
    assert {name: v.item() for name, v in got.items() if v.ndim == 0} == pytest.approx({
        "embedding_std": sum(map(float, spread)) / 6 * math.sqrt(6),
        "positive_similarity": sum(together) / len(together),
        "negative_similarity": sum(apart) / len(apart),
    }, abs=1e-5)  # fmt: skip


def test_diagnostics_tell_collapse_from_spread():
    collapsed = similarities(torch.ones(3, 8, 4))
    assert collapsed["embedding_std"] < 1e-6
    assert collapsed["positive_similarity"] == pytest.approx(1)
    assert collapsed["negative_similarity"] == pytest.approx(1)
    z = torch.randn(1, 2000, 16, generator=torch.Generator().manual_seed(0)).expand(3, -1, -1)
    even = similarities(z)
    assert even["embedding_std"] == pytest.approx(1, abs=0.01)
    assert even["positive_similarity"] == pytest.approx(1)
    assert even["negative_similarity"] == pytest.approx(0, abs=0.01)
