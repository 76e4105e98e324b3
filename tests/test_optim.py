import copy
import math
import os
import pickle

import pytest
import torch
from torch import nn

from ecpp.train import build_optimizer, learning_rate, load_checkpoint, save_checkpoint
from ecpp.train.optim import LARS, default_lr, default_warmup, parameter_groups

# --- the learning rate ----------------------------------------------------------------------------------


def test_the_learning_rate_rises_to_its_peak_and_falls_to_nothing():
    lrs = [learning_rate(i, peak=0.8, total=100, warmup=10) for i in range(100)]
    assert lrs[:10] == pytest.approx([0.08 * (i + 1) for i in range(10)])
    assert lrs[9] == lrs[10] == 0.8
    assert lrs[10:] == sorted(lrs[10:], reverse=True)
    assert len(set(lrs[10:])) == 90
    assert lrs[55] == pytest.approx(0.4)  # half of the cosine
    assert lrs[99] == pytest.approx(0.4 * (1 + math.cos(math.pi * 89 / 90)))
    assert 0 < lrs[99] < 0.8 * 0.001
    assert learning_rate(100, peak=0.8, total=100, warmup=10) == pytest.approx(0, abs=1e-12)


def test_without_warmup_the_first_step_is_the_peak():
    assert learning_rate(0, peak=0.3, total=50) == 0.3
    assert learning_rate(25, peak=0.3, total=50) == pytest.approx(0.15)


def test_a_constant_rate_knows_its_warmup_alone():
    lrs = [learning_rate(i, peak=0.3, total=20, warmup=4, schedule="constant") for i in range(20)]
    assert lrs == pytest.approx([0.075, 0.15, 0.225] + [0.3] * 17)


def test_nothing_but_warmup_needs_no_special_care():
    assert [learning_rate(i, peak=1.0, total=4, warmup=4) for i in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_defaults_are_the_papers():
    assert default_lr("sgd", 1024) == pytest.approx(1.6)
    assert default_lr("lars", 256) == pytest.approx(0.3)
    assert default_lr("adamw", 128) == pytest.approx(0.0005)
    assert [default_warmup(e) for e in (1, 20, 100, 800)] == [0.1, 2.0, 10.0, 10.0]


# --- what decays ----------------------------------------------------------------------------------------


def model():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2, bias=False), nn.Linear(2, 2),
    )  # fmt: skip
    net[8].requires_grad_(False)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape) * 0.1)  # biases and gains that a decay would change
    return net


def test_every_trained_parameter_is_in_one_group_and_only_weights_decay():
    net = model()
    decaying, free = parameter_groups(net, 0.01)
    assert (decaying["weight_decay"], free["weight_decay"]) == (0.01, 0.0)
    names = {id(p): name for name, p in net.named_parameters()}
    assert sorted(names[id(p)] for p in decaying["params"]) == ["0.weight", "5.weight", "7.weight"]
    assert sorted(names[id(p)] for p in free["params"]) == [
        "0.bias", "1.bias", "1.weight", "5.bias", "6.bias", "6.weight",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "factor"), [("sgd", 1 - 0.1 * 0.5), ("adamw", 1 - 0.1 * 0.5)])
def test_only_the_first_group_decays(name, factor):
    net = model()
    before = [p.clone() for p in net.parameters()]
    optimizer = build_optimizer(name, net, lr=0.1, weight_decay=0.5)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for old, new in zip(before, net.parameters(), strict=True):
        decays = old.ndim > 1 and new.requires_grad
        assert torch.allclose(new, old * factor if decays else old, rtol=1e-6)


def test_sgd_is_plain_momentum():
    net = nn.Linear(3, 2, bias=False)
    optimizer = build_optimizer("sgd", net, lr=0.1, momentum=0.8, weight_decay=0.01)
    w, v = net.weight.detach().clone(), torch.zeros(2, 3)
    for step in range(3):
        net.weight.grad = torch.full((2, 3), step + 1.0)
        optimizer.step()
        v = 0.8 * v + (step + 1.0 + 0.01 * w)
        w = w - 0.1 * v  # without Nesterov
    assert torch.allclose(net.weight, w, atol=1e-6)


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="sgd, adamw or lars, but is 'adam'"):
        build_optimizer("adam", model(), lr=0.1)


# --- LARS -----------------------------------------------------------------------------------------------


def test_lars_is_the_formula():
    net = model()
    optimizer = build_optimizer("lars", net, lr=0.5, momentum=0.9, weight_decay=0.01)
    assert isinstance(optimizer, LARS)
    trained = [p for p in net.parameters() if p.requires_grad]
    w = [p.detach().double() for p in trained]
    v = [torch.zeros_like(x) for x in w]
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = 0.5 / (step + 1)
        for i, p in enumerate(trained):
            p.grad = torch.randn(p.shape, generator=g)
            update = p.grad.double()
            if p.ndim > 1:
                update = update + 0.01 * w[i]
                update = update * 0.001 * w[i].square().sum().sqrt() / update.square().sum().sqrt()
            v[i] = 0.9 * v[i] + update
            w[i] = w[i] - 0.5 / (step + 1) * v[i]
        optimizer.step()
    for p, expected in zip(trained, w, strict=True):
        assert torch.allclose(p.double(), expected, rtol=1e-6, atol=1e-7)


def test_lars_takes_weights_or_gradients_of_zero_as_they_are():
    zero, still, unused = (nn.Parameter(torch.full((2, 2), x)) for x in (0.0, 3.0, 5.0))
    optimizer = LARS([zero, still, unused], lr=0.1)
    zero.grad, still.grad = torch.ones(2, 2), torch.zeros(2, 2)
    assert optimizer.step(lambda: 7) == 7
    assert torch.allclose(zero, torch.full((2, 2), -0.1))
    assert torch.equal(still, torch.full((2, 2), 3.0))
    assert torch.equal(unused, torch.full((2, 2), 5.0))


def test_lars_goes_on_from_its_state():
    nets = [model(), model()]
    optimizers = [build_optimizer("lars", net, lr=0.5) for net in nets]

    def step(i, seed):
        g = torch.Generator().manual_seed(seed)
        for p in nets[i].parameters():
            p.grad = torch.randn(p.shape, generator=g) if p.requires_grad else None
        optimizers[i].step()

    step(0, seed=0)
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))  # else they would share it
    step(0, seed=1)
    step(1, seed=1)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


# --- checkpoints ----------------------------------------------------------------------------------------

STATE = {
    "model": {"w": torch.arange(6.0).view(2, 3)},
    "step": 7,
    "config": '{"views": 4}',
    "list": [1, 2.5, None],
}


def assert_is_state(got):
    assert got.keys() == STATE.keys()
    assert torch.equal(got["model"]["w"], STATE["model"]["w"])
    assert (got["step"], got["config"], got["list"]) == (7, '{"views": 4}', [1, 2.5, None])


def test_a_checkpoint_comes_back(tmp_path):
    save_checkpoint({"step": 1}, tmp_path / "x.pt")
    save_checkpoint(STATE, tmp_path / "x.pt")
    assert_is_state(load_checkpoint(tmp_path / "x.pt"))
    assert os.listdir(tmp_path) == ["x.pt"]


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["torch.save", "os.fsync", "os.replace"])
def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch, error, where):
    path = tmp_path / "x.pt"
    save_checkpoint(STATE, path)

    def fail(*args):
        if where == "torch.save":
            args[1].write(b"half of a check")
        raise error

    with monkeypatch.context() as m:
        m.setattr(where, fail)
        with pytest.raises(type(error)):
            save_checkpoint({"step": 8}, path)
    assert_is_state(load_checkpoint(path))
    assert os.listdir(tmp_path) == ["x.pt"]


def test_the_old_checkpoint_stands_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "x.pt"
    save_checkpoint(STATE, path)
    events, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        assert_is_state(load_checkpoint(path)) if "replace" not in events else None
        events.append("fsync")
        fsync(descriptor)

    def replaced(new, old):
        events.append("replace")
        replace(new, old)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.replace", replaced)
    save_checkpoint({"step": 8}, path)
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, the folder
    assert load_checkpoint(path) == {"step": 8}


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("kind", ["torch", "pickle"])
def test_a_checkpoint_cannot_run_code(tmp_path, kind):
    path, marker = tmp_path / "x.pt", tmp_path / "was here"
    state = {"step": 1, "model": Malicious(marker)}
    if kind == "torch":
        torch.save(state, path)
    else:
        path.write_bytes(pickle.dumps(state, protocol=2))
    with pytest.raises(ValueError, match=r"checkpoint .*x\.pt cannot be read"):
        load_checkpoint(path)
    assert not marker.exists()
    torch.load(path, weights_only=False) if kind == "torch" else pickle.loads(path.read_bytes())
    assert marker.exists()  # the trap was armed


@pytest.mark.parametrize("damage", [
    lambda data: data[: len(data) // 2],
    lambda data: data[:-1],
    lambda data: data[:10],
    lambda data: b"",
    lambda data: b"not a checkpoint",
    lambda data: b"these are words",
])  # fmt: skip
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    path = tmp_path / "x.pt"
    save_checkpoint(STATE, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"checkpoint .*x\.pt cannot be read .*damaged or no checkpoint"):
        load_checkpoint(path)


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*x\.pt"):
        load_checkpoint(tmp_path / "x.pt")
