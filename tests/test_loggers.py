"""Metrics beyond metrics.jsonl."""

import importlib.util
import sys
from dataclasses import replace

import pytest
from test_run import QUIET, TINY, records

from ecpp.config import Config
from ecpp.run import pretrain


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="an extra")
def test_tensorboard_holds_what_metrics_do(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    pretrain(replace(TINY, log="tensorboard"), run, console=QUIET)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    logged = [(e.step, e.value) for e in events.Scalars("step/loss")]
    assert logged == [(r["step"], pytest.approx(r["loss"], rel=1e-5)) for r in records(run, "step")]
    assert len(events.Scalars("epoch/knn")) == 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="an extra")
def test_weights_and_biases_works_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    pretrain(replace(TINY, log="wandb"), run, console=QUIET)
    assert list((run / "wandb").glob("offline-run-*/*.wandb"))
    assert (run / "wandb-id").read_text().strip()


def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install 'ecpp\[wandb\]'"):
        pretrain(replace(TINY, log="wandb"), tmp_path / "run", console=QUIET)


def test_only_known_places_are_logged_to():
    with pytest.raises(ValueError, match="--log must be"):
        Config("patterns", log="mlflow")
