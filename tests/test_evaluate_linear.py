"""Linear layers on features: one, a row of them at once, and what chooses among them."""

import math

import pytest
import torch
from torch import nn

from ecpp.evaluate import LinearProtocol, Sides, fit_linear, score
from ecpp.evaluate.linear import IMAGENET_PROTOCOL
from ecpp.evaluate.protocols import FROZEN, SPLITS
from ecpp.evaluate.splits import folds, share
from ecpp.evaluate.sweep import choose_linear, grid

SHORT = LinearProtocol(epochs=10, batch_size=32)


def clusters(n, seed=0, spread=0.1, d=8, classes=3, dtype=torch.float32):
    """Clusters, one around each of the first axes."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    noise = torch.randn(n, d, generator=g, dtype=torch.float64) * spread
    return (torch.eye(classes, d, dtype=torch.float64)[labels] + noise).to(dtype), labels


def sides(spread=0.8, n=120, m=90, classes=3, seed=0):
    return Sides(
        *clusters(n, seed, spread, classes=classes), *clusters(m, seed + 1, spread, classes=classes), classes
    )


def literal(train, labels, classes, protocol, seed, rows=None):
    """torch's own SGD, autograd and schedule; the same start and order. Returns weight (C, D) and bias (C,)."""
    g = torch.Generator().manual_seed(seed)
    layer = nn.Linear(train.shape[1], classes, dtype=train.dtype)
    start = torch.randn(classes, train.shape[1] + 1, generator=g, dtype=train.dtype) * 0.01
    with torch.no_grad():
        layer.weight.copy_(start[:, :-1])
        layer.bias.zero_()
    optimizer = torch.optim.SGD(
        layer.parameters(), lr=protocol.lr, momentum=protocol.momentum, weight_decay=protocol.weight_decay
    )
    rows = torch.arange(len(train)) if rows is None else rows
    batch = min(protocol.batch_size, len(rows))
    total = protocol.epochs * math.ceil(len(rows) / batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
    for _ in range(protocol.epochs):
        for index in rows[torch.randperm(len(rows), generator=g)].split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(train[index]), labels[index]).backward()
            optimizer.step()
            schedule.step()
    return layer.weight.detach(), layer.bias.detach()


@pytest.mark.parametrize("protocol", [
    LinearProtocol(epochs=8, batch_size=32),
    LinearProtocol(lr=0.3, momentum=0.995, weight_decay=0.05, epochs=5, batch_size=25),
    LinearProtocol(lr=0.5, momentum=0.0, epochs=20, batch_size=1000),
], ids=["CIFAR-10", "with decay", "one batch"])  # fmt: skip
def test_the_probe_trains_as_torch_itself_would(protocol):
    train, labels = clusters(90, spread=0.8, dtype=torch.float64)
    weight, bias = literal(train, labels, 3, protocol, seed=5)
    got = fit_linear(train, labels, classes=3, protocol=protocol, seed=5)
    assert torch.allclose(got.w[:, :-1], weight, rtol=1e-9, atol=1e-11)
    assert torch.allclose(got.w[:, -1], bias, rtol=1e-9, atol=1e-11)
    assert weight.abs().max() > 0.3
    test, truth = clusters(80, seed=1, spread=0.8, dtype=torch.float64)
    logits = test @ weight.T + bias
    assert torch.allclose(got.logits(test), logits)
    assert got.accuracies(test, truth).item() == pytest.approx(
        (logits.argmax(dim=1) == truth).double().mean()
    )


def test_a_row_of_settings_trains_as_each_would_alone():
    train, labels = clusters(90, spread=0.8, dtype=torch.float64)
    test, truth = clusters(80, seed=1, spread=0.8, dtype=torch.float64)
    settings = [(0.25, 0.0), (0.01, 0.0), (2.0, 0.01), (0.25, 0.1)]
    rows = torch.arange(0, 90, 2)
    together = fit_linear(train, labels, classes=3, protocol=SHORT, settings=settings, rows=rows, seed=2)
    accuracies = together.accuracies(test, truth)
    for i, (lr, decay) in enumerate(settings):
        alone = LinearProtocol(lr=lr, weight_decay=decay, epochs=10, batch_size=32)
        weight, bias = literal(train, labels, 3, alone, seed=2, rows=rows)
        logits = test @ weight.T + bias
        assert torch.allclose(together.logits(test, setting=i), logits, rtol=1e-9)
        assert accuracies[i].item() == score(logits, truth).top1


def test_half_precision_is_near():
    train, labels = clusters(300, spread=0.8)
    test, truth = clusters(300, seed=1, spread=0.8)
    full, half = (
        fit_linear(train, labels, classes=3, protocol=SHORT, settings=grid(SHORT), bf16=b)
        for b in (False, True)
    )
    assert not torch.equal(full.w, half.w)
    usual = 3 * 18  # rows of the settings up to the protocol's own learning rate; larger ones are chaotic
    assert (full.w - half.w)[:usual].norm() < 0.01 * full.w[:usual].norm()
    assert (full.accuracies(test, truth) - half.accuracies(test, truth))[:18].abs().max() < 0.01


def test_a_setting_that_diverges_harms_no_other_and_is_never_chosen():
    train, labels = clusters(90, spread=0.8)
    settings = [(0.25, 0.0), (1e6, 1.0)]
    probes = fit_linear(train, labels, classes=3, protocol=SHORT, settings=settings)
    alone = fit_linear(train, labels, classes=3, protocol=SHORT)
    assert torch.allclose(probes.logits(train), alone.logits(train), atol=1e-5)
    assert not probes.w[3:].isfinite().all()
    assert probes.accuracies(train, labels)[1] == 0
    assert probes.accuracies(train, labels)[0] > 0.4


def test_the_probe_follows_its_seed_and_leaves_the_callers_numbers_alone():
    train, labels = clusters(90, spread=0.8)
    state = torch.get_rng_state()
    w = [fit_linear(train, labels, classes=3, protocol=SHORT, seed=s).w for s in (0, 0, 1)]
    assert torch.equal(w[0], w[1])
    assert not torch.allclose(w[0], w[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_the_probe_needs_its_bias():
    x = torch.linspace(1, 2, 100)[:, None]  # on one side of the origin
    labels = (x[:, 0] > 1.5).long()
    probes = fit_linear(x, labels, classes=2, protocol=LinearProtocol(lr=2.0, epochs=100))
    assert score(probes.logits(x), labels).top1 > 0.95


def test_the_constants_are_the_papers_and_describe_themselves():
    assert LinearProtocol() == LinearProtocol(0.25, 0.9, 0.0, 100, 256)
    assert LinearProtocol(0.3, 0.995, 1e-6, 100, 256) == IMAGENET_PROTOCOL
    words = LinearProtocol(lr=0.7, epochs=33).describe()
    for part in ("33 epochs", "batch 256", "lr 0.7", "momentum 0.9", "weight decay 0.0", "un-augmented"):
        assert part in words


# --- scores ---------------------------------------------------------------------------------------------


def test_a_score_counts_one_answer_five_and_each_class():
    votes = torch.tensor([
        [9.0, 8, 7, 6, 5, 4, 3],
        [9.0, 8, 7, 6, 5, 4, 3],
        [3.0, 4, 5, 6, 7, 8, 9],
        [9.0, 8, 7, 6, 5, 4, 3],
    ])  # fmt: skip
    found = score(votes, torch.tensor([0, 4, 1, 5]))
    assert (found.top1, found.top5, found.tested) == (0.25, 0.5, 4)
    assert found.per_class == (1.0, 0.0, None, None, 0.0, 0.0, None)
    assert score(votes[:, :5], torch.tensor([0, 4, 1, 3])).top5 is None
    assert score(torch.full((2, 7), torch.nan), torch.tensor([0, 1])).top5 == 0.0


# --- choosing -------------------------------------------------------------------------------------------


def test_the_sweep_holds_a_tenth_of_every_class_out():
    train, labels = clusters(100, spread=0.8)
    protocol = LinearProtocol(epochs=5, batch_size=16)
    choice = choose_linear(train, labels, classes=3, protocol=protocol, seed=4)
    part = folds(labels, 10, 4)
    inside, outside = (part != 0).nonzero()[:, 0], (part == 0).nonzero()[:, 0]
    probes = fit_linear(
        train, labels, classes=3, protocol=protocol, settings=grid(protocol), rows=inside, seed=4
    )
    expected = probes.accuracies(train[outside], labels[outside]).tolist()
    assert [accuracy for _, _, accuracy in choice.tried] == expected
    assert choice.accuracy == max(expected)
    assert (choice.protocol.lr, choice.protocol.weight_decay) == choice.tried[expected.index(max(expected))][
        :2
    ]
    assert len(grid(protocol)) == 30
    assert (protocol.lr, protocol.weight_decay) in grid(protocol)  # the paper's own is among them
    with pytest.raises(ValueError, match="too few to hold some out"):
        choose_linear(train[:1], labels[:1], classes=3, protocol=protocol)


@pytest.mark.parametrize("name", ["linear-sweep", "knn-grid", "semi-10"])
def test_the_labels_of_the_test_images_choose_nothing(name):
    here = sides()
    protocol = LinearProtocol(epochs=5, batch_size=32)
    first = FROZEN[name](here, protocol, seed=0, bf16=False)
    g = torch.Generator().manual_seed(3)
    truth = here.truth[torch.randperm(len(here.truth), generator=g)]
    second = FROZEN[name](here._replace(truth=truth), protocol, seed=0, bf16=False)
    third = FROZEN[name](here._replace(test=here.test.flip(1)), protocol, seed=0, bf16=False)
    assert first.extra["chosen"] == second.extra["chosen"] == third.extra["chosen"]
    assert first.extra.get("tried") == second.extra.get("tried")
    assert second.score.top1 < first.score.top1


def test_the_sweep_trains_its_choice_anew_on_all():
    here = sides()
    protocol = LinearProtocol(epochs=5, batch_size=32)
    found = FROZEN["linear-sweep"](here, protocol, seed=0, bf16=False)
    chosen = LinearProtocol(
        lr=found.extra["chosen"]["lr"],
        weight_decay=found.extra["chosen"]["weight_decay"],
        epochs=5,
        batch_size=32,
    )
    assert found.score == FROZEN["linear"](here, chosen, seed=0, bf16=False).score
    assert found.labels == 120


def test_the_last_epoch_counts_and_the_best_is_said_beside_it():
    here = sides()
    tops = []
    protocol = LinearProtocol(lr=2.0, epochs=6, batch_size=16)
    fit_linear(
        here.train, here.labels, classes=3, protocol=protocol,
        after_epoch=lambda epoch, probes: tops.append(float(probes.accuracies(here.test, here.truth))),
    )  # fmt: skip
    found = FROZEN["linear"](here, protocol, seed=0, bf16=False)
    assert found.score.top1 == pytest.approx(tops[-1])
    assert found.best == (tops.index(max(tops)) + 1, max(tops))
    assert found.epochs == 6


# --- splits ---------------------------------------------------------------------------------------------


def test_few_labels_are_a_fixed_share_of_every_class():
    labels = torch.tensor([0] * 200 + [1] * 40 + [2] * 3)[torch.randperm(243)]
    for part, counts in ((0.1, [20, 4, 1]), (0.01, [2, 1, 1])):
        chosen = [share(labels, part, seed) for seed in (0, 0, 1)]
        assert torch.bincount(labels[chosen[0]]).tolist() == counts
        assert torch.equal(chosen[0], chosen[1])
        assert not torch.equal(chosen[0], chosen[2])
    assert torch.equal(share(labels, 1.0, 0), torch.arange(243))
    small, large = share(labels, 0.01, 0), share(labels, 0.1, 0)
    assert torch.isin(small, large).all()  # of one seed the larger share holds the smaller


def test_folds_hold_each_image_once_and_every_class_alike():
    labels = torch.arange(100) % 4
    part = folds(labels, 5, seed=1)
    assert torch.bincount(part).tolist() == [20] * 5
    for c in range(4):
        assert torch.bincount(part[labels == c]).tolist() == [5] * 5


def test_few_labels_are_the_mean_over_fixed_splits():
    here = sides(n=300)
    protocol = LinearProtocol(epochs=5, batch_size=32)
    found = FROZEN["semi-10"](here, protocol, seed=0, bf16=False)
    assert found.seeds == SPLITS
    assert found.labels == 30
    tops = []
    for split, chosen in zip(SPLITS, found.extra["chosen"], strict=True):
        rows = share(here.labels, 0.1, split)
        own = LinearProtocol(**chosen, epochs=5, batch_size=32)
        probes = fit_linear(here.train[rows], here.labels[rows], classes=3, protocol=own, seed=0)
        tops.append(score(probes.logits(here.test), here.truth).top1)
    assert found.extra["top1_of_splits"] == pytest.approx(tops)
    assert found.score.top1 == pytest.approx(sum(tops) / 3)
