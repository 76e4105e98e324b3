"""Steps on several processes equal those of one process on the whole batch."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranks import on_ranks
from test_run import QUIET, TINY, records, same_weights
from timm.layers import BatchNormAct2d
from torch import nn

from ecpp import distributed
from ecpp.method import METHODS
from ecpp.model.norm import SyncBatchNorm, synchronise
from ecpp.model.resnet import ResNet
from ecpp.objective.pairs import GRAPHS
from ecpp.run import RunFolder, pretrain
from ecpp.train import load_checkpoint
from ecpp.views import ViewBatch

K, N = 4, 12
OPTIONS = {
    "simclr": {},
    "simclr-vanilla": {"positive_in_denominator": True, "pair_reduction": "mean"},
    "simclr-core": {"pairs": GRAPHS["core"](K), "bn_mode": "per_view"},
    "byol": {"ema": 0.9},
    "byol-multi-crop": {"pairs": GRAPHS["multi-crop"](K), "bn_mode": "per_view"},
    "byol-large": {"target_views": "large_only"},
    "simsiam": {},
    "simsiam-through": {"stop_gradient": False},
    "mocov3": {"ema": 0.9},
    "mocov3-large": {"target_views": "large_only"},
    "barlow": {},
    "vicreg": {},
    "wmse": {},
}


def build(name, dtype):
    torch.manual_seed(0)
    encoder = ResNet("resnet10", width=4, small_stem=True)
    # An encoder of timm's with fused BatchNorm and activation, in front of which the drop must not be lost.
    encoder.layer4 = nn.Sequential(encoder.layer4, nn.Conv2d(32, 32, 1, bias=False), BatchNormAct2d(32))
    kind = METHODS[name.split("-")[0]].load()
    heads = kind.heads(encoder.num_features, 6 if name == "wmse" else 16, 2)
    return kind(encoder, **heads, **OPTIONS[name]).to(dtype).to(memory_format=torch.channels_last)


def batch_of(step, dtype, rank=0, world=1):
    """The rows of one rank: a run of the whole batch's."""
    g = torch.Generator().manual_seed(100 + step)
    share = N // world
    groups = []
    for views, side in ((2, 16), (2, 12)):
        images = torch.randn(views, N, 3, side, side, generator=g, dtype=torch.float64).to(dtype)
        groups.append(images[:, rank * share : (rank + 1) * share].flatten(0, 1))
    return ViewBatch(tuple(groups), ((0, 2), (1, 3)), torch.arange(rank * share, (rank + 1) * share))


def train(names, dtype, lr=1e-3, steps=3):
    """Per method: the losses, the gradients of the first step, and all weights and statistics at the end."""
    results = {}
    for name in names:
        method = build(name, dtype).train()
        synchronise(method)
        module = distributed.wrap(method)
        optimizer = torch.optim.SGD(
            [p for p in method.parameters() if p.requires_grad], lr=lr, momentum=0.9, weight_decay=1e-4
        )
        losses, gradients = [], {}
        for step in range(steps):
            out = module(batch_of(step, dtype, distributed.rank(), distributed.world()))
            optimizer.zero_grad()
            out.loss.backward()
            losses.append(distributed.mean(out.loss.detach()))
            if step == 0:
                gradients = {n: p.grad.clone() for n, p in method.named_parameters() if p.grad is not None}
            optimizer.step()
            method.after_step((step + 1) / steps)
        results[name] = {"loss": torch.stack(losses)} | gradients | method.state_dict(prefix="state.")
    return results


def worst(one, other):
    """The largest relative difference of any tensor; one that is 0 but for rounding counts absolutely."""
    assert one.keys() == other.keys()
    return max(
        float((one[k] - other[k]).double().norm() / one[k].double().norm().clamp_min(1e-4)) for k in one
    )


def check(world, names):
    alone = train(names, torch.float64)
    for theirs in on_ranks(world, train, names, torch.float64):
        for name in names:
            assert worst(alone[name], theirs[name]) < 1e-9, name


def test_two_ranks_take_the_steps_of_one():
    check(2, ["simclr", "byol"])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_any_method_takes_the_steps_of_one(world):
    check(world, list(OPTIONS))


def joined(result):
    """Losses, gradients, weights and statistics, each as one vector: single ones can be all rounding in fp32."""
    kinds = {}
    for name, value in result.items():
        kind = name if name == "loss" else "gradient"
        if name.startswith("state."):
            kind = "statistics" if "running" in name else "weights"
        kinds.setdefault(kind, []).append(value.flatten().double())
    return {kind: torch.cat(values) for kind, values in kinds.items()}


@pytest.mark.slow
def test_in_fp32_too():
    # At a rate where no method diverges: an exploding loss would magnify the rounding.
    options = (list(OPTIONS), torch.float32, 1e-4)
    alone, (theirs, _) = train(*options), on_ranks(2, train, *options)
    for name in OPTIONS:
        assert worst(joined(alone[name]), joined(theirs[name])) < 1e-4, name


def whole_run(out, method):
    config = replace(
        TINY,
        source="patterns:96",
        epochs=1,
        precision="fp32",
        method=method,
        keep_best="knn",
        lr=1e-3,
        log_every=1,
    )
    pretrain(config, Path(out) / ("alone" if distributed.world() == 1 else "shared"), console=QUIET)
    return torch.tensor(distributed.rank())


def test_a_run_of_two_processes_is_that_of_one(tmp_path):
    whole_run(str(tmp_path), "simclr")
    on_ranks(2, whole_run, str(tmp_path), "simclr")
    a, b = (load_checkpoint(tmp_path / run / "checkpoint.pt") for run in ("alone", "shared"))
    assert (a["step"], a["ranks"], b["step"], b["ranks"]) == (6, 1, 6, 2)
    vectors = [torch.cat([v.flatten().double() for v in s["method"].values()]) for s in (a, b)]
    # In fp32 a rounding flips a ReLU now and then; the steps themselves are compared in float64 above.
    assert float((vectors[0] - vectors[1]).norm() / vectors[0].norm()) < 1e-2
    for kind in ("step", "epoch"):
        alone, shared = (records(tmp_path / run, kind) for run in ("alone", "shared"))
        assert [r["loss"] for r in alone] == pytest.approx([r["loss"] for r in shared], rel=2e-2)
        assert [r["view_passes"] for r in alone] == [r["view_passes"] for r in shared]
    assert records(tmp_path / "alone", "step")[0]["loss"] == pytest.approx(
        records(tmp_path / "shared", "step")[0]["loss"], rel=1e-5
    )
    assert alone[0]["knn"] == pytest.approx(shared[0]["knn"], abs=0.06)  # of 19 images one may waver
    assert (tmp_path / "shared" / "best.pt").exists()


def stopped_run(out):
    config = replace(TINY, source="patterns:96", epochs=3, precision="fp32")
    append = RunFolder.append

    def die(folder, record):
        if record["step"] > 12 and Path(out).name == "stopped" and not (Path(out) / "died").exists():
            (Path(out) / "died").touch()
            raise OSError("the disk is gone")
        append(folder, record)

    RunFolder.append = die
    try:
        pretrain(config, Path(out), console=QUIET)
    except (OSError, ValueError) as e:
        return str(e)
    return ""


@pytest.mark.slow
def test_two_processes_go_on_where_they_were(tmp_path):
    assert on_ranks(2, stopped_run, str(tmp_path / "whole")) == ["", ""]
    assert on_ranks(2, stopped_run, str(tmp_path / "stopped")) == ["the disk is gone"] * 2
    assert on_ranks(2, stopped_run, str(tmp_path / "stopped")) == ["", ""]
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def several_things():
    rank = distributed.rank()
    rows = distributed.gather_rows(torch.full((rank + 1, 2), rank))
    z = torch.full((2, 1, 3), float(rank), requires_grad=True)
    distributed.gather(z).mul(torch.arange(2.0)[None, :, None] + 1 + rank).sum().backward()
    told = distributed.first(lambda: {"rank": distributed.rank()})
    mistakes = []
    try:
        distributed.first(lambda: (_ for _ in ()).throw(ValueError("a sentence")))
    except ValueError as e:
        mistakes = [type(e).__name__, str(e)]
    word, heard = distributed.Word(), []
    for step in range(4):
        heard.append(word.tell(rank == 1 and step == 1))
    word.close()
    flags = distributed.anywhere(torch.tensor([False, rank == 1]))
    return rows, z.grad, told, mistakes, heard, flags


def test_what_ranks_tell_each_other():
    for rank, (rows, gradient, told, mistakes, heard, flags) in enumerate(on_ranks(2, several_things)):
        assert rows.tolist() == [[0, 0], [1, 1], [1, 1]]
        # rank 0 weighs the rows by 1 and 2, rank 1 by 2 and 3
        assert gradient.unique().tolist() == [[3.0], [5.0]][rank]
        assert told == {"rank": 0}
        assert mistakes == ["Elsewhere" if rank else "ValueError", "a sentence"]
        assert heard == [False, False, True, False]
        assert flags.tolist() == [False, True]


def test_one_process_needs_no_group():
    z = torch.randn(2, 3, 4)
    assert distributed.gather(z) is z
    assert distributed.gather_rows(z) is z
    assert (distributed.rank(), distributed.world(), distributed.is_main()) == (0, 1, True)
    module = nn.BatchNorm1d(3)
    synchronise(module)
    assert distributed.wrap(module) is module


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3), nn.BatchNorm2d(3), BatchNormAct2d(3), nn.BatchNorm2d(3, affine=False)]
)
def test_the_synchronised_norm_is_the_plain_one_on_one_rank(monkeypatch, norm):
    def all_gather(parts, mine):
        parts[0].copy_(mine)

    monkeypatch.setattr("torch.distributed.all_gather", all_gather)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda x: None)
    norm = norm.double()
    ours = SyncBatchNorm.like(copy.deepcopy(norm))
    g = torch.Generator().manual_seed(0)
    for training in (True, True, False):
        shape = (6, 3) if isinstance(norm, nn.BatchNorm1d) else (6, 3, 4, 5)
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        xs = [x.clone().requires_grad_() for _ in range(2)]
        ys = [m.train(training)(v) for m, v in zip((norm, ours), xs, strict=True)]
        torch.testing.assert_close(*ys)
        for y in ys:
            (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(shape)).sum().backward()
        torch.testing.assert_close(*[v.grad for v in xs])
    assert norm.state_dict().keys() == ours.state_dict().keys()
    for a, b in zip(norm.state_dict().values(), ours.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(norm.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
