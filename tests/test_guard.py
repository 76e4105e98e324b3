"""Numbers that go wrong: a planted NaN, a learning rate far too high, an overflow of fp16."""

import json
from dataclasses import replace

import pytest
import torch
from test_run import QUIET, TINY, records, weights
from torch import nn

from ecpp.cli import main
from ecpp.data import Stream
from ecpp.run import build, pretrain
from ecpp.run.replay import replay
from ecpp.train import Guard, NotFinite, build_optimizer, load_checkpoint
from ecpp.views import ViewBatch

FRAGILE = replace(TINY, source="patterns:64", epochs=6, log_every=4, precision="fp32", clip=None)


def plant(monkeypatch, sample):
    """From the second epoch on, the first view of one image holds a NaN."""
    real = Stream._from_memory

    def planted(self, start, stop):
        for step, batch in zip(range(start, stop), real(self, start, stop), strict=True):
            place = (batch.samples == sample).nonzero()[:, 0]
            if step >= self.steps_per_epoch and len(place) and self.plan.k == TINY.views:
                batch.groups[0][int(place[0]), 0, 3, 3] = float("nan")
            yield batch

    monkeypatch.setattr(Stream, "_from_memory", planted)


def step_of(sample):
    """The first step of the second epoch that holds the image, from 1."""
    stream = build.build_stream(*prepared(), lambda error: None)
    epoch = stream.steps_per_epoch
    return next(s for s in range(epoch, 2 * epoch) if sample in stream.samples(s).tolist()) + 1


def prepared():
    from ecpp.run.resolve import resolve

    images = build.open_data(FRAGILE).train
    return resolve(FRAGILE, images), images


def test_a_planted_nan_is_found_and_replayed(tmp_path, monkeypatch, capsys):
    run, sample = tmp_path / "run", 7
    step, name = step_of(sample), build.open_data(FRAGILE).train.name(sample)
    plant(monkeypatch, sample)
    with pytest.raises(ValueError) as e:
        pretrain(FRAGILE, run, console=QUIET)
    said = str(e.value)
    assert (
        f"step {step}: an image is not finite before it enters the encoder, in the views 1 of {name};" in said
    )
    assert "view pairs 1-2, 1-3" in said
    assert "the last good checkpoint stands" in said
    assert "ecpp replay" in said
    failure = json.loads((run / "failure.json").read_text())
    assert (failure["step"], failure["images"], failure["views"]) == (step, [name], [1])
    assert records(run, "step")[-1]["step"] == 4
    assert all(v.isfinite().all() for v in weights(run).values())
    sentence, reproduced = replay(run)
    assert reproduced
    assert sentence.startswith(f"replayed from step 4; the step broke again. step {step}: an image")
    main(["replay", str(run)])
    assert "the step broke again" in capsys.readouterr().out
    monkeypatch.undo()
    before = {f.name: f.read_bytes() for f in run.iterdir() if f.is_file()}
    sentence, reproduced = replay(run)
    assert not reproduced
    assert f"step {step} is finite this time" in sentence
    assert before == {f.name: f.read_bytes() for f in run.iterdir() if f.is_file()}


@pytest.mark.parametrize(("method", "optimizer"), [("simclr", "sgd"), ("byol", "lars")])
def test_a_learning_rate_far_too_high_leaves_the_last_good_checkpoint(tmp_path, method, optimizer):
    run = tmp_path / "run"
    config = replace(FRAGILE, method=method, optimizer=optimizer, lr=1e6, epochs=40)
    with pytest.raises(ValueError, match="training diverged at step") as e:
        pretrain(config, run, console=QUIET)
    assert "A lower --lr or --clip 1" in str(e.value)
    assert "the last good checkpoint stands" in str(e.value)
    assert (
        load_checkpoint(run / "checkpoint.pt")["step"]
        < json.loads((run / "failure.json").read_text())["step"]
    )
    assert all(v.isfinite().all() for v in weights(run).values())
    sentence, reproduced = replay(run)
    assert reproduced
    assert "broke again" in sentence or "shows already here" in sentence  # a replay looks after every step


def test_an_overflow_of_fp16_is_named(tmp_path, monkeypatch):
    run = tmp_path / "run"
    real = build.build_method

    def loud(*arguments):
        method = real(*arguments)
        with torch.no_grad():
            method.encoder.conv1.weight.mul_(1e6)  # its output passes 65504
        return method

    monkeypatch.setattr(build, "build_method", loud)
    with pytest.raises(ValueError, match=r"the output of encoder\.conv1 is not finite, for 16 images") as e:
        pretrain(replace(FRAGILE, precision="fp16", epochs=1), run, console=QUIET)
    assert "step 1:" in str(e.value)
    sentence, reproduced = replay(run)
    assert reproduced
    assert "encoder.conv1" in sentence


def test_without_a_failure_there_is_nothing_to_replay(tmp_path):
    pretrain(replace(FRAGILE, epochs=1), tmp_path / "run", console=QUIET)
    with pytest.raises(ValueError, match=r"has no failure\.json"):
        replay(tmp_path / "run")


def test_fp16_trains(tmp_path):
    losses = []
    for precision in ("fp16", "fp32"):
        pretrain(replace(FRAGILE, precision=precision, epochs=2), tmp_path / precision, console=QUIET)
        losses.append([r["loss"] for r in records(tmp_path / precision, "step")])
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert losses[0] != losses[1]


# --- the guard alone --------------------------------------------------------------------------------------


def net_and_optimizer(name):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    return net, build_optimizer(name, net, lr=0.1, weight_decay=0.5)


def everything(net, optimizer):
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    return [v.detach().clone() for v in [*net.parameters(), *state]]


def one(net, guard, optimizer, step, value):
    optimizer.zero_grad()
    loss = (net(torch.ones(4, 3)) * value).sum()
    guard.scaled(loss).backward()
    guard.step(step, loss.detach(), net.parameters(), optimizer, None)


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_from_the_first_bad_step_on_nothing_moves(name):
    net, optimizer = net_and_optimizer(name)
    guard = Guard(torch.device("cpu"))
    for step in range(2):
        one(net, guard, optimizer, step, 1.0)
    guard.check()
    before = everything(net, optimizer)
    for step, value in enumerate((float("nan"), 1.0, float("inf")), 2):
        one(net, guard, optimizer, step, value)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(net, optimizer), strict=True))
    with pytest.raises(NotFinite) as e:
        guard.check()
    assert e.value.step == 2


def test_an_overflow_of_a_scaled_gradient_only_skips_its_step():
    net, optimizer = net_and_optimizer("sgd")
    guard = Guard(torch.device("cpu"), fp16=True)
    before = everything(net, optimizer)
    one(net, guard, optimizer, 0, 1e36)  # finite, but not 65536 times it
    assert all(torch.equal(a, b) for a, b in zip(before, everything(net, optimizer), strict=False))
    assert float(guard.scale) == 2.0**15
    guard.check()
    for step in range(1, 2001):
        one(net, guard, optimizer, step, 1e-3)
    assert float(guard.scale) == 2.0**16
    restored = Guard(torch.device("cpu"), fp16=True)
    restored.restore(guard.state())
    assert float(restored.scale) == 2.0**16
    for step in range(2001, 2030):  # a gradient that overflows whatever the scale
        one(net, guard, optimizer, step, 1e38)
    with pytest.raises(NotFinite):
        guard.check()


def test_the_unscaled_gradient_is_the_plain_one():
    results = []
    for fp16 in (False, True):
        net, optimizer = net_and_optimizer("sgd")
        guard = Guard(torch.device("cpu"), fp16=fp16)
        for step in range(3):
            one(net, guard, optimizer, step, 1.0)
        results.append(everything(net, optimizer))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_views_of_some_images():
    from ecpp.train.parts import some_images

    groups = tuple(torch.randn(v * 6, 3, s, s) for v, s in ((2, 8), (1, 4)))
    batch = ViewBatch(groups, ((0, 2), (1,)), torch.arange(6))
    part = some_images(batch, 2, 5)
    assert part.samples.tolist() == [2, 3, 4]
    for k in range(3):
        assert torch.equal(part.view(k), batch.view(k)[2:5])
