"""`ecpp doctor`: what it says of a machine, and that its proof can fail."""

import pytest

from ecpp.cli import main
from ecpp.method import METHODS
from ecpp.run import doctor
from ecpp.run.resolve import usable_device


def test_it_proves_every_method_and_measures_loading(capsys):
    main(["doctor", "--source", "patterns:64"])
    said = capsys.readouterr().out
    for head in ("python", "packages", "cores", "devices", "precision", "backends", "loading", "equality"):
        assert f"\n{head} " in f"\n{said}"
    assert f"{len(METHODS)} methods, worst relative difference" in said
    assert "images/s of patterns:64" in said


def test_processes_that_train_otherwise_are_found(monkeypatch, capsys):
    """The two processes are started anew and step as they should; this one, alone, is a little off."""
    alone = doctor.steps

    def a_little_off(name, device):
        found = alone(name, device)
        return found | {"losses": found["losses"] * (1 + 1e-6)} if name == "byol" else found

    monkeypatch.setattr(doctor, "steps", a_little_off)
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert "two processes do not train as one here (above 1e-09: byol 1.0e-06)" in capsys.readouterr().err


def test_what_is_not_finite_is_no_proof():
    with pytest.raises(ValueError, match="vicreg nan"):
        doctor._judge({"simclr": 1e-12, "vicreg": float("nan")}, 1e-9)


@pytest.mark.parametrize("name", ["meta", "tpu", "cuda:99"])
def test_a_device_that_computes_nothing_is_refused(name):
    with pytest.raises(ValueError, match="--device cpu always can"):
        usable_device(name)
    assert usable_device("cpu") == "cpu"
