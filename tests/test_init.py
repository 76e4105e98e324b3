"""Weights from elsewhere: every key is accounted for, or nothing starts."""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_runs import make_run
from test_cli import TINY, call, fails
from torch import nn

import ecpp
from ecpp.config import Config
from ecpp.model import create_encoder
from ecpp.model.fit import fit
from ecpp.run.init import initialise, read_weights


def encoder(seed=0, channels=3, width=4):
    torch.manual_seed(seed)
    return create_encoder("resnet10", size=32, width=width, channels=channels)


def weights(seed=1, **options):
    return encoder(seed, **options).state_dict()


def test_all_keys_arrive():
    net, theirs = encoder(), weights()
    got = fit(net, theirs)
    assert (got.matched, got.total, got.waived, got.inflated) == (60, 60, (), ())
    assert all(torch.equal(v, theirs[k]) for k, v in net.state_dict().items())
    assert str(got) == "60/60 keys match"


@pytest.mark.parametrize("prefix", ["module.", "backbone.", "module.encoder_q."])
def test_a_prefix_is_taken_off(prefix):
    net, theirs = encoder(), weights()
    fit(net, {prefix + k: v for k, v in theirs.items()})
    assert all(torch.equal(v, theirs[k]) for k, v in net.state_dict().items())


def test_what_is_missing_left_over_or_of_another_shape_is_listed():
    net, theirs = encoder(), weights()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    del theirs["bn1.weight"]
    theirs["conv1.weight"] = torch.zeros(4, 3, 7, 7)
    theirs["fc.weight"] = torch.zeros(10, 32)
    with pytest.raises(ValueError, match="58/60 keys match") as e:
        fit(net, theirs)
    for words in (
        "bn1.weight is missing",
        "conv1.weight is (4, 3, 7, 7) there, (4, 3, 3, 3) here",
        "fc.weight is left over",
    ):
        assert words in str(e.value)
    with pytest.raises(ValueError, match=r"bn1\.weight is missing"):
        fit(net, theirs, allow=["fc", "conv1.*"])
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    got = fit(net, theirs, allow=["fc", "conv1.*", "bn1.weight"])
    assert (got.matched, set(got.waived)) == (58, {"bn1.weight", "conv1.weight", "fc.weight"})
    assert torch.equal(net.conv1.weight, before["conv1.weight"])
    assert torch.equal(net.layer1[0].conv1.weight, theirs["layer1.0.conv1.weight"])


def test_keys_beside_the_prefix_are_left_over():
    theirs = {f"encoder.{k}": v for k, v in weights().items()} | {"head.0.weight": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match=r"60/60 keys match, but head\.0\.weight is left over"):
        fit(encoder(), theirs)
    assert fit(encoder(), theirs, allow=["head"]).matched == 60


def test_no_match_is_an_error_whatever_is_allowed():
    with pytest.raises(ValueError, match="none of the encoder's 60 keys match"):
        fit(encoder(), nn.Linear(2, 2).state_dict(), allow=["*"])


def test_an_encoder_that_is_there_twice_is_refused():
    twice = {f"{p}.{k}": v for p in ("online", "target") for k, v in weights().items()}
    with pytest.raises(ValueError, match=r"holds? the encoder 2 times, under 'online\.', 'target\.'"):
        fit(encoder(), twice)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_first_convolution_is_spread_only_if_asked(channels):
    theirs = weights()
    net = encoder(channels=channels)
    with pytest.raises(ValueError, match=r"conv1\.weight is"):
        fit(net, theirs)
    got = fit(net, theirs, inflate=True)
    assert got.inflated == ("conv1.weight",)
    w = theirs["conv1.weight"]
    wanted = w.sum(dim=1, keepdim=True) if channels == 1 else w.repeat(1, 2, 1, 1)[:, :4] * 3 / 4
    assert torch.allclose(net.conv1.weight, wanted)


def test_old_files_may_lack_the_counters_of_batchnorms():
    theirs = {k: v for k, v in weights().items() if "num_batches" not in k}
    assert fit(encoder(), theirs).matched == 60


@pytest.mark.parametrize("kind", ["run", "checkpoint", "safetensors", "pth", "nested"])
def test_weights_come_from_many_kinds_of_files(kind, tmp_path):
    run = make_run(tmp_path / "run")
    state = ecpp.load(run).state_dict()
    path = {"run": run, "checkpoint": run / "checkpoint.pt"}.get(kind, tmp_path / f"x.{kind}")
    if kind == "safetensors":
        save_file({k: v.contiguous() for k, v in state.items()}, path)
    elif kind in ("pth", "nested"):
        torch.save(dict(state) if kind == "pth" else {"epoch": 3, "state_dict": dict(state)}, path)
    got = read_weights(path)
    assert got.keys() == state.keys()
    assert all(torch.equal(v, state[k]) for k, v in got.items())


def test_files_that_are_none_end_in_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to start from"):
        read_weights(tmp_path / "x.pth")
    with pytest.raises(FileNotFoundError, match="is no run"):
        read_weights(tmp_path)
    for name in ("x.safetensors", "x.pth"):
        (tmp_path / name).write_bytes(b"no weights")
        with pytest.raises(ValueError, match=r"damaged or no"):
            read_weights(tmp_path / name)
    torch.save({"epoch": 1}, tmp_path / "y.pth")
    with pytest.raises(ValueError, match="holds no weights"):
        read_weights(tmp_path / "y.pth")


def config(**options):
    return Config(source="patterns:100", large=32, **options)


def test_timms_own_weights_arrive(monkeypatch):
    real, asked = timm.create_model, []

    def create(name, pretrained=False, **arguments):
        asked.append((name, pretrained, arguments))
        torch.manual_seed(7)
        return real(name.split(".")[0], **arguments)

    monkeypatch.setattr(timm, "create_model", create)
    net = create_encoder("resnet18", size=224)
    said = initialise(net, config(encoder="resnet18", init="timm:resnet18.a1_in1k"))
    assert said == "--init timm:resnet18.a1_in1k: 100/100 keys match"
    assert asked == [("resnet18.a1_in1k", True, {"num_classes": 0})]
    torch.manual_seed(7)
    assert torch.equal(net.conv1.weight, real("resnet18", num_classes=0).conv1.weight)
    with pytest.raises(ValueError, match=r"conv1\.weight is \(64, 3, 7, 7\) there, \(64, 3, 3, 3\) here"):
        initialise(create_encoder("resnet18", size=32), config(encoder="resnet18", init="timm:resnet18"))


def test_timm_is_asked_for_the_encoder_of_the_run(monkeypatch):
    real, asked = timm.create_model, []

    def create(name, pretrained=False, **arguments):
        asked.append((name, pretrained, arguments))
        return real(name, **arguments)

    net = create_encoder("vit_tiny_patch16_224", size=32, channels=1)
    monkeypatch.setattr(timm, "create_model", create)
    options = config(
        encoder="vit_tiny_patch16_224", channels=1, init="timm:vit_tiny_patch16_224", init_inflate=True
    )
    assert "spread over other channels: patch_embed.proj.weight" in initialise(net, options)
    _, pretrained, arguments = asked[-1]
    assert pretrained
    assert arguments == {"num_classes": 0, "in_chans": 3, "img_size": 32, "dynamic_img_size": True}


@pytest.mark.parametrize(
    "error", [FileNotFoundError("cannot find the hub\nand more"), RuntimeError("No tag")]
)
def test_a_hub_that_does_not_answer_ends_in_a_sentence(error, monkeypatch):
    def create(name, **arguments):
        raise error

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(
        ValueError, match=r"timm gives no weights for 'resnet18' \((cannot find the hub|No tag)\)"
    ):
        initialise(create_encoder("resnet18", size=224), config(encoder="resnet18", init="timm:resnet18"))


def test_a_run_starts_from_another_and_goes_on_without_it(tmp_path, capsys):
    first = make_run(tmp_path / "first")
    options = [*TINY, "--lr=1e-9", "--weight-decay=0", "--method=byol"]
    call("pretrain", "patterns:64", "--out", tmp_path / "run", *options, "--init", first)
    assert "60/60 keys match" in " ".join(capsys.readouterr().err.split())
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "60/60" in about["started_from"][0]
    old, new = ecpp.load(first).state_dict(), ecpp.load(tmp_path / "run").state_dict()
    assert all(torch.allclose(new[k], v, atol=1e-5) for k, v in old.items() if k.endswith("conv1.weight"))
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["method"]
    targets = [k for k in state if k.endswith("layer1.0.conv1.weight")]
    assert len(targets) == 2  # BYOL's target starts from the same weights
    assert torch.allclose(state[targets[0]], state[targets[1]], atol=1e-5)
    (first / "checkpoint.pt").rename(first / "gone.pt")
    call("resume", tmp_path / "run")


def test_mistakes_end_in_a_sentence(tmp_path, capsys):
    out = ["--out", tmp_path / "run", *TINY]
    assert "nothing to start from" in fails(
        capsys, "pretrain", "patterns:64", *out, "--init", tmp_path / "x.pt"
    )
    assert "belongs to --init" in fails(capsys, "pretrain", "patterns:64", *out, "--init-allow", "fc")
    wide = make_run(tmp_path / "wide", width=8)
    message = fails(capsys, "pretrain", "patterns:64", *out, "--init", wide)
    assert "does not fit resnet10: none of the encoder's 60 keys match" in message
    assert not (tmp_path / "run").exists()
