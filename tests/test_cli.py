"""The command as a person calls it."""

import json
import subprocess
import sys

import pytest

from ecpp.cli import COMMANDS, main

TINY = ["--views=3", "--encoder=resnet10", "--width=4", "--batch-size=16", "--epochs=1", "--threads=1"]


def call(*words):
    main([str(w) for w in words])


def fails(capsys, *words):
    """The sentence that a mistake ends in."""
    with pytest.raises(SystemExit) as e:
        call(*words)
    assert e.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in message
    return message


def test_a_whole_session(tmp_path, capsys):
    run = tmp_path / "run"
    call("pretrain", "patterns:200", "--out", run, *TINY)
    assert f"ecpp evaluate {run}" in capsys.readouterr().out
    call("resume", run)
    call("evaluate", run)
    out = capsys.readouterr().out
    assert "linear" in out
    assert "evaluation.json" in out
    call("views", "patterns:200", "--out", tmp_path / "views.png", "--views", "3", "--images", "2")
    assert (tmp_path / "views.png").stat().st_size > 1000
    call("report", run, "--out", tmp_path / "page.html")
    assert "ECPP×3" in (tmp_path / "page.html").read_text()


def test_options_reach_the_config(tmp_path):
    options = {
        "--n-simclr": "3", "--large": "24", "--small": "16", "--pairing": "core",
        "--loss": "vanilla", "--optimizer": "lars", "--lr": "0.25", "--tau": "0.5", "--workers": "0",
        "--precision": "fp32", "--seed": "7", "--limit": "40", "--val": "patterns:30", "--pair-reduction": "mean",
    }  # fmt: skip
    words = [w for pair in options.items() for w in pair]
    call("pretrain", "patterns:200", "--out", tmp_path / "run", *TINY, *words)
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    for option, value in options.items():
        got = config[option[2:].replace("-", "_")]
        assert str(got) == value, option


def test_byol_has_options_of_its_own(tmp_path):
    call("pretrain", "patterns:100", "--out", tmp_path / "run", *TINY, "--method=byol", "--ema=0.9")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (about["name"], about["config"]["ema"]) == ("BYOL×3", 0.9)


def test_a_recipe_gives_defaults_that_options_change(capsys):
    call("plan", "--recipe", "imagenet100", "--views", "8", "--small", "64")
    out = " ".join(capsys.readouterr().out.split())
    assert "28 (full" in out
    assert "224 px" in out
    assert "64 px" in out
    assert "10 epochs of warm-up" in out
    call("plan", "patterns:1000", "--views", "4", "--epochs", "2")
    out = " ".join(capsys.readouterr().out.split())
    assert "1,000 images, 2 epochs: 30 steps of 64 images, 7,680 view passes, 11,520 pairs" in out


def test_mistakes_end_in_a_sentence(tmp_path, capsys):
    run = tmp_path / "run"
    assert "no command 'pretain'" in fails(capsys, "pretain")
    assert "there is no folder" in fails(capsys, "pretrain", tmp_path / "nowhere", "--out", run)
    assert "at least 2" in fails(capsys, "pretrain", "patterns:100", "--out", run, "--views", "1")
    assert "cannot be used here" in fails(capsys, "pretrain", "patterns:100", "--out", run, "--device", "gpu")
    assert "larger than the 100 images" in fails(
        capsys, "pretrain", "patterns:100", "--out", run, *TINY, "--batch-size", "128"
    )
    assert "no encoder 'resnet11'" in fails(
        capsys, "pretrain", "patterns:100", "--out", run, "--encoder", "resnet11"
    )
    assert "invalid choice" in fails(capsys, "pretrain", "patterns:100", "--out", run, "--pairing", "all")
    assert "is no run" in fails(capsys, "evaluate", run)
    assert "is no run" in fails(capsys, "resume", run)
    assert "cifar10, imagenet100" in fails(capsys, "pretrain", "x", "--out", run, "--recipe", "mnist")
    assert "torchvision has no data set" in fails(capsys, "pretrain", "torchvision:CIFAR11", "--out", run)
    assert not run.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as e:
        call(command, "--help")
    assert e.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_importing_ecpp_loads_nothing_and_changes_nothing():
    code = (
        "import os, sys; env = dict(os.environ); before = set(sys.modules); import ecpp; "
        "heavy = {'torch', 'numpy', 'torchvision', 'timm', 'PIL', 'rich', 'tyro', 'matplotlib'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); assert env == dict(os.environ); "
        "assert dir(ecpp) and ecpp.__version__; print(ecpp.load.__name__, ecpp.SimCLR.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["load", "SimCLR"]


def test_help_needs_neither_torch_nor_tyro():
    code = "import sys; from ecpp.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(f"  {name}" in done.stdout for name in COMMANDS)
    done = subprocess.run(
        [sys.executable, "-m", "ecpp", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "0.1.0"
