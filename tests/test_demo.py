import json

import pytest

from ecpp.demo import arms, free_folder, run_demo


def test_the_arms_are_comparable():
    ecpp, epochs, passes = arms(3).values()
    assert {c.seed for c in (ecpp, epochs, passes)} == {3}
    assert epochs.epochs == ecpp.epochs
    assert passes.epochs * passes.views == ecpp.epochs * ecpp.views
    assert (epochs.views, epochs.loss, passes.loss) == (2, "vanilla", "vanilla")


def test_a_second_demo_leaves_the_first_alone(tmp_path):
    assert free_folder(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    assert free_folder(tmp_path / "demo") == tmp_path / "demo-3"


@pytest.mark.slow
def test_the_demo_ends_in_a_table_and_a_page(tmp_path, capsys):
    page = run_demo(tmp_path / "demo", seed=1)
    out = capsys.readouterr().out
    assert str(page) in out.replace("\n", "")
    assert "random" in out
    text = page.read_text()
    assert text.count("data:image/png;base64") == 2
    evaluation = json.loads((tmp_path / "demo" / "ecpp" / "evaluation.json").read_text())
    linear = {r["protocol"]: r for r in evaluation["results"]}["linear"]
    assert linear["top1"] >= 0.8
    assert linear["floor"] <= 0.45
