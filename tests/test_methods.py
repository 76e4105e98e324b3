"""Every method × K: it learns, its options matter, and what it shows adds up."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from test_method import Brightness, Counting, batch, by_hand, stir

from ecpp.config import Config
from ecpp.method import METHODS, SimSiam
from ecpp.method.parts import encode, project
from ecpp.model import mlp
from ecpp.model.momentum import ema_tau
from ecpp.objective import barlow, byol, contrastive, diagnostics, directed, pairs, vicreg, wmse
from ecpp.run import RunFolder, build, pretrain, resume
from ecpp.run.resolve import resolve_views
from ecpp.train import load_checkpoint
from ecpp.views import ViewBatch

NAMES = tuple(METHODS)
WITH_TARGETS = tuple(m for m, e in METHODS.items() if "target_views" in e.options)
WITH_EMA = tuple(m for m, e in METHODS.items() if "ema" in e.options)
QUIET = Console(quiet=True)


def make(name, dim=4, layers=2, **options):
    torch.manual_seed(0)
    kind = METHODS[name].load()
    return kind(Counting(), **kind.heads(8, dim, layers), **options)


# --- training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 4, 6])
@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_lower_the_loss(name, k):
    method, b = make(name), batch(k=k, n=16)
    trained = [p for p in method.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1 * METHODS[name].base_lr / k)
    losses = []
    for step in range(20):
        loss, _ = method(b, diagnose=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step(step / 20)
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]), losses


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_learns_and_no_target_does(name):
    method = make(name)
    method(batch(n=16)).loss.backward()
    for parameter, p in method.named_parameters():
        assert p.requires_grad is not parameter.startswith("target."), parameter
        if p.requires_grad:
            assert p.grad is not None, parameter
        else:
            assert p.grad is None, parameter


LOSSES = {
    "simclr": lambda m, z, p, t, g: contrastive(z, g),
    "byol": lambda m, z, p, t, g: byol(p, t, g),
    "simsiam": lambda m, z, p, t, g: byol(p, z, g),
    "mocov3": lambda m, z, p, t, g: directed.join(
        directed.contrast_terms(p, t, tau=0.2), pairs.full(4) if g is None else g
    ),
    "barlow": lambda m, z, p, t, g: barlow(z, g),
    "vicreg": lambda m, z, p, t, g: vicreg(z, g),
    "wmse": lambda m, z, p, t, g: wmse(z, g),
}


@pytest.mark.parametrize("graph", [None, pairs.multi_crop])
@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_its_objective_of_its_embeddings(name, graph):
    graph = graph and graph(4)
    method, b = make(name, pairs=graph), batch(n=16)
    if hasattr(method, "target"):
        stir(method.target)
    twin = copy.deepcopy(method)
    loss = method(b).loss
    z = by_hand(twin.encoder, twin.projector, b, n=16)
    p = project(twin.predictor, z) if hasattr(twin, "predictor") else None
    t = by_hand(twin.target.encoder, twin.target.projector, b, n=16) if hasattr(twin, "target") else None
    assert loss.item() == pytest.approx(LOSSES[name](twin, z, p, t, graph).item(), rel=1e-4)


def test_simsiam_without_its_stopped_gradient_collapses():
    g = torch.Generator().manual_seed(0)
    images = torch.randn(32, 3, 8, 8, generator=g)
    views = torch.cat([images + 0.3 * torch.randn(32, 3, 8, 8, generator=g) for _ in range(4)])
    b, spread = ViewBatch((views,), ((0, 1, 2, 3),), torch.arange(32)), {}
    for stop_gradient in (True, False):
        method = make("simsiam", dim=8, stop_gradient=stop_gradient)
        assert isinstance(method, SimSiam)
        torch.manual_seed(1)
        method.projector = mlp(8, 8, 8, layers=2, final_bn=False)  # a last BatchNorm only slows the collapse
        optimizer = torch.optim.SGD(method.parameters(), lr=0.05, momentum=0.9)
        for step in range(100):
            loss, metrics = method(b, diagnose=step == 99)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        spread[stop_gradient] = metrics["embedding_std"].item()
    assert spread[False] < 0.1 < 0.4 < spread[True], spread


# --- what is shown --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"pairs": pairs.multi_crop(4)}, {"target_views": "large_only"}])
@pytest.mark.parametrize("name", NAMES)
def test_the_losses_of_the_pairs_add_up_to_the_loss(name, options):
    if "target_views" in options and name not in WITH_TARGETS:
        pytest.skip("this method has no targets")
    loss, metrics = make(name, **options)(batch(n=16))
    shown = metrics["pair_loss"]
    assert torch.equal(shown, shown.T)
    assert shown.sum().item() / 2 == pytest.approx(loss.item(), rel=1e-4)
    if options:  # both leave the pair of the two small views out
        assert shown[2, 3] == 0
    for value in metrics.values():
        assert not value.requires_grad
    assert ("positive_share" in metrics) is (name in ("simclr", "mocov3"))
    if "positive_share" in metrics:
        assert 0 < metrics["positive_share"] < 1


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_shown_that_was_not_asked_for(name):
    method, b = make(name), batch(n=16)
    twin = copy.deepcopy(method)
    (loss, metrics), (shown_loss, shown) = method(b, diagnose=False), twin(b)
    assert metrics == {}
    assert shown
    assert torch.equal(loss, shown_loss)
    assert all(torch.equal(v, twin.state_dict()[k]) for k, v in method.state_dict().items())


def test_the_share_of_the_positive_counts_taught_pairs_alone():
    method, b = make("mocov3", target_views="large_only"), batch(n=16)
    twin = copy.deepcopy(method)
    shown = method(b).metrics["positive_share"]
    q = project(twin.predictor, by_hand(twin.encoder, twin.projector, b, n=16))
    keys = twin.target(b, "per_group", "large_only")
    every = diagnostics.positive_share(q, keys, tau=0.2)
    taught = [every[i, j] for i in range(4) for j in range(2) if i != j]
    assert shown.item() == pytest.approx(sum(taught).item() / len(taught), rel=1e-4)


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_large_only_targets_are_predicted_by_all_and_predict_each_other(name):
    b = batch(n=16)
    method = make(name, target_views="large_only", pair_reduction="mean")
    if hasattr(method, "target"):
        stir(method.target)
    twin = copy.deepcopy(method)
    loss = method(b).loss
    z = by_hand(twin.encoder, twin.projector, b, n=16)
    p = project(twin.predictor, z)
    if hasattr(method, "target"):
        assert method.target.encoder.network.calls == [(32, 3, 16, 16)]
        # BatchNorm of the target's projector averages over the large views, too.
        large = twin.target.encoder(torch.cat([b.view(0), b.view(1)]))
        t = twin.target.projector(large).view(2, 16, -1)
    else:
        t = z[:2].detach()
    f = directed.contrast_terms if name == "mocov3" else directed.regression_terms
    terms = f(p, t, **({"tau": 0.2} if name == "mocov3" else {}))
    taught = [terms[i, j] for i in range(4) for j in range(2) if i != j]
    assert loss.item() == pytest.approx(sum(taught).item() / (len(taught) / 2), rel=1e-4)
    loss.backward()
    assert all(p.grad is not None for p in method.encoder.parameters())


@pytest.mark.parametrize("small", [10, 16])
@pytest.mark.parametrize("name", WITH_TARGETS)
def test_the_views_of_a_size_may_lie_in_any_order(name, small):
    b = batch(k=3, small=small, n=16)
    turned = ViewBatch(
        tuple(
            torch.cat(images.chunk(len(places))[::-1])
            for images, places in zip(b.groups, b.order, strict=True)
        ),
        tuple(places[::-1] for places in b.order),
        b.samples,
    )
    for target_views in ("all", "large_only"):
        method = make(name, target_views=target_views, bn_mode="per_view").eval()
        if hasattr(method, "target"):
            stir(method.target)
        one, two = method(b), method(turned)
        assert two.loss.item() == pytest.approx(one.loss.item(), rel=1e-5)
        torch.testing.assert_close(two.metrics["pair_loss"], one.metrics["pair_loss"], rtol=1e-4, atol=1e-5)


def test_an_option_that_is_no_field_of_the_config_is_named(monkeypatch):
    monkeypatch.setitem(METHODS, "vicreg", METHODS["vicreg"]._replace(options=("width_of_spread",)))
    with pytest.raises(ValueError, match="'width_of_spread', which is no field of Config"):
        replace(TINY, method="vicreg")
    replace(TINY, method="simclr")  # the others stay as they are


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize("name", WITH_EMA)
def test_a_target_can_move_as_if_every_pair_were_a_step(name, schedule):
    method = make(name, ema=0.9, ema_pairs=6, ema_schedule=schedule)
    stir(method.encoder)
    before = [q.clone() for q in method.target.encoder.parameters()]
    method.after_step(0.3)
    tau = (0.9 if schedule == "constant" else ema_tau(0.9, 0.3)) ** 6
    for was, q, p in zip(
        before, method.target.encoder.parameters(), method.encoder.parameters(), strict=True
    ):
        assert torch.allclose(q, tau * was + (1 - tau) * p, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_summed_or_averaged(name):
    b = batch(n=16)
    total, mean = (make(name, pair_reduction=r)(b).loss.item() for r in ("sum", "mean"))
    assert total == pytest.approx(6 * mean, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_batchnorm_averages_over_matters(name):
    b = batch(k=6, n=16)
    kinds = ("SimCLR",) * 3 + ("crop-only",) * 3
    losses = {mode: make(name, bn_mode=mode)(b).loss.item() for mode in ("per_group", "per_view", kinds)}
    assert len(set(losses.values())) == 3


def test_views_of_one_kind_and_size_share_a_pass():
    b, encoder = batch(k=6, n=5), Counting()
    twin = copy.deepcopy(encoder)
    kinds = ("SimCLR", "SimCLR", "crop-only", "SimCLR", "crop-only", "SimCLR")
    h = encode(encoder, b, kinds)
    assert encoder.calls == [(10, 3, 16, 16), (10, 3, 10, 10), (10, 3, 10, 10)]
    for views in ((0, 1), (2, 4), (3, 5)):
        expected = twin(torch.cat([b.view(k) for k in views])).split(5)
        for k, e in zip(views, expected, strict=True):
            assert torch.equal(h[k], e)
    assert torch.equal(encode(Brightness(), b, kinds), encode(Brightness(), b))


@pytest.mark.parametrize("mode", ["per_kind", ("SimCLR",) * 3, "group"])
def test_a_mode_of_batchnorm_that_does_not_exist_is_named(mode):
    with pytest.raises(ValueError, match="a kind for each of the K=4 views"):
        encode(Counting(), batch(), mode)


# --- the table ------------------------------------------------------------------------------------------

TINY = Config(
    source="patterns:80",
    views=3,
    small=20,
    encoder="resnet10",
    width=4,
    projector_dim=8,
    batch_size=16,
    epochs=1,
    threads=1,
    precision="fp32",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_goes_on_and_is_named(tmp_path, name):
    config = replace(TINY, method=name)
    folder = pretrain(config, tmp_path / "run", console=QUIET)
    assert folder.read()["name"] == ("ECPP×3" if name == "simclr" else f"{METHODS[name].title}×3")
    state = load_checkpoint(RunFolder(tmp_path / "run").checkpoint)["method"]
    method = build.build_method(folder.resolved())
    assert state.keys() == method.state_dict().keys()
    assert any(k.startswith("target.") for k in state) is (name in WITH_EMA)
    resume(tmp_path / "run", console=QUIET)
    step = [line for line in folder.metrics.read_text().splitlines() if '"pair_loss": [[0.0, ' in line]
    assert len(step) == 1


def test_the_target_is_in_the_checkpoint_as_it_stands():
    method = make("byol", ema=0.5)
    stir(method.encoder)
    method.after_step(0.0)
    other = make("byol")
    other.load_state_dict(method.state_dict(), strict=True)
    for a, b in zip(method.target.parameters(), other.target.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(method.target.encoder.network.net[0].weight, method.encoder.net[0].weight)


def resolved(**options):
    return replace(
        resolve_views(Config(source="", encoder="resnet10", width=4, **options), 32),
        device="cpu",
        precision="fp32",
    )


def test_options_of_a_config_reach_the_methods():
    byol_ = build.build_method(
        resolved(method="byol", ema=0.9, ema_per_pair=True, target_views="large_only", small=20)
    )
    assert (byol_.target.ema, byol_.target.pairs, byol_.target_views) == (0.9, 5, "large_only")
    assert build.build_method(resolved(method="mocov3", ema_per_pair=True)).target.pairs == 6
    assert build.build_method(resolved(method="byol")).target.pairs == 1
    assert not build.build_method(resolved(method="simsiam", stop_gradient=False)).stop_gradient
    assert build.build_method(resolved(loss="vanilla")).positive_in_denominator
    assert build.build_method(resolved(method="mocov3", tau=0.5)).tau == 0.5
    kinds = build.build_method(resolved(bn_mode="per_kind")).bn_mode
    assert kinds == ("SimCLR", "SimCLR", "crop-only", "crop-only")


def test_every_method_has_heads_and_a_learning_rate_of_its_own():
    dims = {name: resolved(method=name).projector_dim for name in NAMES}
    assert dims["simclr"] == 256
    assert dims["barlow"] > 256
    assert dims["wmse"] < 64  # the default batch
    for name, entry in METHODS.items():
        assert resolved(method=name).lr == pytest.approx(entry.base_lr * 64 / 256)
        assert resolved(method=name, optimizer="adamw").lr == pytest.approx(0.001 * 64 / 256)
        assert resolved(method=name, projector_dim=24).projector_dim == 24
    bottleneck = build.build_method(resolved(method="simsiam")).predictor[0]
    assert bottleneck.out_features == bottleneck.in_features // 4


@pytest.mark.parametrize(("options", "sentence"), [
    ({"method": "simlcr"}, "--method must be one of simclr, byol.* 'simlcr'"),
    ({"method": "barlow", "tau": 0.1}, "--tau belongs to --method simclr or mocov3"),
    ({"method": "mocov3", "loss": "vanilla"}, "--loss belongs to --method simclr "),
    ({"ema": 0.9}, "--ema belongs to --method byol or mocov3"),
    ({"method": "simsiam", "ema_per_pair": True}, "--ema-per-pair belongs to --method byol or mocov3"),
    ({"method": "vicreg", "target_views": "large_only"}, "--target-views belongs to --method byol or simsiam or"),
    ({"method": "byol", "stop_gradient": False}, "--stop-gradient belongs to --method simsiam "),
])  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(source="x", **options)


@pytest.mark.parametrize("options", [{"views": 2}, {"small": 32}])
def test_targets_of_large_views_alone_need_small_ones(options):
    config = Config(source="x", method="byol", target_views="large_only", **options)
    with pytest.raises(ValueError, match="would change nothing: all views are of 32 px"):
        resolve_views(config, 32)


def test_whitening_more_than_a_batch_ends_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="whitening 16 dimensions needs more than 16 images"):
        pretrain(replace(TINY, method="wmse", projector_dim=16), tmp_path / "run", console=QUIET)


def test_the_command_line_offers_the_methods_of_the_table():
    done = subprocess.run(
        [sys.executable, "-m", "ecpp", "pretrain", "--help"], check=True, capture_output=True, text=True
    )
    assert "{" + ",".join(NAMES) + "}" in "".join(done.stdout.replace("│", "").split())


def test_the_table_needs_no_torch():
    code = "import sys, ecpp.config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_entry_finds_its_class():
    import ecpp.method

    for entry in METHODS.values():
        name = entry.home.split(":")[1]
        assert getattr(ecpp.method, name) is entry.load()
        assert name in ecpp.method.__all__
    with pytest.raises(AttributeError, match="no attribute 'SimSam'"):
        _ = ecpp.method.SimSam
