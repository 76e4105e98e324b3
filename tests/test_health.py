"""Is it learning? Measures without labels, and their verdicts."""

import json
import math
from dataclasses import replace

import pytest
import torch
from test_run import QUIET, TINY, records
from torch import nn

from ecpp.config import Config
from ecpp.demo import arms
from ecpp.run import build, pretrain
from ecpp.train import load_checkpoint
from ecpp.train.health import History, measure, spectrum_decay


def test_the_effective_rank_counts_directions():
    g = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(300, 8, generator=g, dtype=torch.float64))
    z = torch.randn(300, 4, generator=g)
    assert measure(q, z, z)["rankme"] == pytest.approx(8, rel=1e-3)
    scaled = q * torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0])
    assert measure(scaled, z, z)["rankme"] == pytest.approx(3, rel=1e-3)


def test_alignment_and_uniformity_are_those_of_the_definition():
    g = torch.Generator().manual_seed(0)
    h, a, b = (
        torch.randn(20, 5, generator=g),
        torch.randn(20, 3, generator=g),
        torch.randn(20, 3, generator=g),
    )
    found = measure(h, a, b)
    unit = [t.double() / t.double().norm(dim=1, keepdim=True) for t in (a, b)]
    alignment = sum(float(((x - y) ** 2).sum()) for x, y in zip(*unit, strict=True)) / 20
    pairs = [
        math.exp(-2 * float(((unit[0][i] - unit[0][j]) ** 2).sum())) for i in range(20) for j in range(i)
    ]
    assert found["alignment"] == pytest.approx(alignment)
    assert found["uniformity"] == pytest.approx(math.log(sum(pairs) / len(pairs)))
    assert found["std"] == pytest.approx(float(unit[0].std(dim=0).mean()) * 3**0.5)


def test_the_decay_of_a_power_law_is_its_exponent():
    g = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(500, 30, generator=g, dtype=torch.float64))
    q = q - q.mean(dim=0)
    q, _ = torch.linalg.qr(q)
    values = torch.arange(1, 31, dtype=torch.float64) ** (-1.3 / 2)
    assert spectrum_decay(q * values) == pytest.approx(1.3, abs=1e-6)


def history(ranks, std=0.9, knn=None):
    records = [{"epoch": e, "rankme": r, "std": std} for e, r in enumerate(ranks, 1)]
    for r, k in zip(records, knn or [], strict=False):
        r["knn"] = k
    return History(records)


@pytest.mark.parametrize(("found", "verdict"), [
    (history([10.0]), "healthy"),
    (history([10.0, 11.0]), "still improving"),
    (history([10.0, 9.9]), "healthy"),
    (history([10.0, 12, 12, 12, 12, 12, 12]), "plateau since epoch 2"),
    (history([10.0, 12, 12, 12, 12, 12, 12], knn=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]), "still improving"),
    (history([10.0, 12, 12, 12, 5]), "collapsing"),
    (history([1.5]), "collapsing"),
    (history([10.0, 11.0], std=0.1), "collapsing"),
])  # fmt: skip
def test_the_verdict_follows_from_the_history(found, verdict):
    assert found.verdict() == verdict


def test_every_epoch_says_how_it_goes(tmp_path, capsys):
    from rich.console import Console

    run = tmp_path / "run"
    pretrain(replace(TINY, keep_best="rankme"), run, console=Console(stderr=True, width=1000))
    epochs = records(run, "epoch")
    keys = {"rankme", "alpha", "alignment", "uniformity", "std", "verdict", "knn"}
    assert all(keys <= r.keys() for r in epochs)
    said = capsys.readouterr().err
    assert epochs[0]["verdict"] in said
    assert f"rank {epochs[0]['rankme']:.1f}" in said
    best = max(epochs, key=lambda r: r["rankme"])
    kept = load_checkpoint(run / "best.pt")
    assert (kept["step"], kept["rankme"]) == (best["step"], best["rankme"])
    saved = json.loads(load_checkpoint(run / "checkpoint.pt")["history"])
    assert [r["rankme"] for r in saved] == [r["rankme"] for r in epochs]


def test_a_best_that_cannot_be_known_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--keep-best rankme needs at least 32 images"):
        pretrain(replace(TINY, source="patterns:40", keep_best="rankme"), tmp_path / "run", console=QUIET)


def without_what_prevents_it(*arguments):
    """BYOL whose predictor does nothing and whose target is the network itself."""
    method = build_method(*arguments)
    method.predictor = nn.Identity()
    method.target.ema = 0.0
    follow = method.target.follow
    method.target.follow = lambda encoder, projector, progress: follow(encoder, projector, 0.0)
    return method


build_method = build.build_method


@pytest.mark.slow
def test_a_forced_collapse_is_called_so(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "build_method", without_what_prevents_it)
    config = Config(
        "patterns:2000", method="byol", views=2, encoder="resnet10", width=16, epochs=3, threads=1
    )
    pretrain(config, tmp_path / "run", console=QUIET)
    assert "collapsing" in [r["verdict"] for r in records(tmp_path / "run", "epoch")]


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["ecpp", "simclr-equal-epochs", "byol"])
def test_no_healthy_run_is_called_collapsing(tmp_path, arm):
    config = arms(0)["simclr-equal-epochs" if arm == "byol" else arm]
    if arm == "byol":
        config = replace(config, method="byol", loss="ecpp")
    pretrain(replace(config, source="patterns:2000", threads=1), tmp_path / "run", console=QUIET)
    verdicts = [r["verdict"] for r in records(tmp_path / "run", "epoch")]
    assert "collapsing" not in verdicts
