"""What a setting costs, from a few steps: `ecpp plan --measure`."""

from dataclasses import replace

import pytest

from ecpp.config import Config
from ecpp.run import explain
from ecpp.run.measure import STEPS, Cost, measure, take_steps

TINY = Config(source="patterns:200", encoder="resnet10", width=4, batch_size=16, threads=1)


def test_a_few_steps_are_taken_and_timed(monkeypatch):
    taken = []
    real = __import__("ecpp.train.loop", fromlist=["_step"])._step
    monkeypatch.setattr("ecpp.train.loop._step", lambda *a, **o: taken.append(1) or real(*a, **o))
    cost = take_steps(TINY)
    assert len(taken) == STEPS
    assert cost.steps_per_epoch == 200 // 16
    assert 0 < cost.step_seconds < 60
    assert cost.epoch_seconds == cost.step_seconds * 12
    assert cost.memory > 1 << 26  # torch alone takes more


def test_a_process_of_its_own_tells_its_cost_or_its_mistake():
    assert measure(replace(TINY, views=2)).steps_per_epoch == 12
    with pytest.raises(ValueError, match="there is no folder"):
        measure(replace(TINY, source="/nowhere"))


def test_candidates_name_views_and_the_size_of_small_ones(monkeypatch, capsys):
    assert [(c.views, c.small) for c in (explain._candidate(TINY, t) for t in ("2", "6x20", "4"))] == [
        (2, None), (6, 20), (4, None),
    ]  # fmt: skip
    for wrong in ("", "x20", "six", "6x", "6x2x2"):
        with pytest.raises(ValueError, match="takes numbers of views"):
            explain._candidate(TINY, wrong)
    monkeypatch.setattr(explain, "measure", lambda c: Cost(0.5 * c.views, 12, c.views << 20))
    explain.explain_costs(TINY, explain.candidates(TINY, ("2", "4x20")))
    shown = capsys.readouterr().out
    for words in ("1 s", "12 s", "2 MiB", "20 px", "4 MiB"):
        assert words in shown
    with pytest.raises(ValueError, match="takes steps with real images"):
        explain.candidates(replace(TINY, source=""), ("2",))
