"""Runs judged by every protocol: what is written, kept, used again and refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

import ecpp
from ecpp import distributed
from ecpp.cli import main
from ecpp.config import Config
from ecpp.data import Stream, open_source
from ecpp.evaluate import FinetuneProtocol, LinearProtocol, Preprocess, features, finetune, linear_aug, score
from ecpp.report import write_report
from ecpp.run import RunFolder, bench, curve_of_run, evaluate_run, pretrain, protocols
from ecpp.run.protocols import PROTOCOLS
from ecpp.views import View, ViewPlan

QUIET = Console(quiet=True)
CLASSES, EACH = 6, 8


def make_images(root, classes=CLASSES, each=EACH):
    """Colours that are hard to tell apart in noise; six classes, so that there is a top-5."""
    for split, n in (("train", each), ("test", 4)):
        for c in range(classes):
            folder = root / split / f"class{c}"
            folder.mkdir(parents=True)
            for i in range(n):
                g = torch.Generator().manual_seed(1000 * c + i + 500 * (split == "test"))
                pixels = torch.randint(0, 160, (16, 16, 3), generator=g, dtype=torch.uint8)
                pixels[..., c % 3] += 30 + 12 * (c // 3)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    return str(root)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of two epochs with each of its encoders, and its images."""
    root = tmp_path_factory.mktemp("made")
    source = make_images(root / "images")
    config = Config(
        source=source, views=2, encoder="resnet10", width=4, batch_size=16, epochs=2, threads=1, workers=0,
        precision="fp32", keep_epochs=True, keep_best="knn",
    )  # fmt: skip
    pretrain(config, root / "run", console=QUIET)
    return root


@pytest.fixture
def run(made, tmp_path):
    """A copy of it, not yet judged."""
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def by_name(evaluation):
    return {r["protocol"]: r for r in evaluation["results"]}


# --- records --------------------------------------------------------------------------------------------


def test_every_protocol_says_what_it_is(run, made, monkeypatch):
    monkeypatch.setattr(protocols, "LEAST_STEPS", 20)
    said = []
    result = evaluate_run(run, protocols=PROTOCOLS, epochs=2, cache=False, say=said.append)
    assert json.loads((run / "evaluation.json").read_text()) == result
    found = by_name(result)
    assert list(found) == list(PROTOCOLS)
    for name, r in found.items():
        assert 0 <= r["top1"] <= r["top5"] <= 1
        assert list(r["per_class"]) == [f"class{c}" for c in range(CLASSES)]
        assert sum(r["per_class"].values()) / CLASSES == pytest.approx(r["top1"])  # classes of one size
        assert r["tested"] == 24
        assert r["source"] == str(made / "images")
        assert r["seconds"] >= r["solver_seconds"] > 0
        few = {"semi-1": 6, "semi-10": 6, "semi-1-finetune": 6, "semi-10-finetune": 6}
        assert r["labels"] == few.get(name, CLASSES * EACH)
        assert (r["floor"] is None) is (name == "supervised")
        if name in ("linear", "linear-sweep", "linear-aug", "finetune", "supervised"):
            assert r["best_by_test"]["top1"] >= r["last"]["top1"] == r["top1"]
        assert any(line.startswith(f"{name}: ") for line in said)
    assert found["finetune"]["floor"] == found["supervised"]["top1"]
    assert found["linear"]["last"]["epoch"] == 100
    assert found["linear-aug"]["last"]["epoch"] == found["finetune"]["last"]["epoch"] == 2
    assert found["semi-10"]["seeds"] == [0, 1, 2]
    assert "2 epochs, batch 48" in found["finetune"]["details"]
    assert "20 epochs, batch 6" in found["semi-10-finetune"]["details"]
    assert not (run / "features").exists()
    page = write_report([run], run / "report.html").read_text()
    assert "<h2>Protocols</h2>" in page
    assert "semi-10-finetune" in page


def test_protocols_join_those_of_the_same_weights_and_data(run, made):
    evaluate_run(run, protocols=["knn"])
    both = evaluate_run(run, protocols=["linear-sweep"])
    assert list(by_name(both)) == ["knn", "linear-sweep"]
    again = evaluate_run(run, protocols=["knn", "linear"])
    assert list(by_name(again)) == ["knn", "linear-sweep", "linear"]
    assert list(by_name(evaluate_run(run, protocols=["knn"], limit=12))) == ["knn"]  # other data
    assert list(by_name(evaluate_run(run, protocols=["linear"], limit=12))) == ["knn", "linear"]
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    state["method"]["encoder.conv1.weight"] *= 2
    torch.save(state, run / "checkpoint.pt")
    (run / "checkpoint.pt.sha256").unlink(missing_ok=True)
    assert list(by_name(evaluate_run(run, protocols=["linear"], limit=12))) == ["linear"]  # other weights
    (run / "evaluation.json").write_text("{")
    assert evaluate_run(run, protocols=["knn"])["results"]


def test_the_choice_is_blind_to_the_test_labels(run, made, tmp_path):
    there = tmp_path / "images"
    shutil.copytree(made / "images", there)
    test = there / "test"
    for c in range(CLASSES):  # every test image gets the label of the next class
        (test / f"class{c}").rename(test / f"was{c}")
    for c in range(CLASSES):
        (test / f"was{c}").rename(test / f"class{(c + 1) % CLASSES}")
    names = ["linear-sweep", "knn-grid", "semi-10"]
    honest, turned = (by_name(evaluate_run(run, source, protocols=names)) for source in (None, str(there)))
    for name in names:
        for key in ("chosen", "tried", "held_out_top1"):
            assert honest[name].get(key) == turned[name].get(key)
        assert honest[name]["per_class"] != turned[name]["per_class"]


def test_other_classes_are_a_transfer(run, made, tmp_path):
    other = make_images(tmp_path / "pets", classes=3)
    result = evaluate_run(run, protocols=["knn"], transfer=[other])
    assert list(by_name(result)) == ["knn", "transfer:pets"]
    found = by_name(result)["transfer:pets"]
    assert (found["labels"], found["tested"], found["top5"]) == (24, 12, None)
    assert list(found["per_class"]) == ["class0", "class1", "class2"]
    assert found["source"] == other


def test_batchnorm_can_be_recalibrated(run):
    result = by_name(evaluate_run(run, protocols=["linear", "knn"]))
    both = by_name(evaluate_run(run, protocols=["linear"], recalibrate_bn=True))
    assert list(both) == ["linear", "knn", "linear+bn"]
    assert both["linear"] == result["linear"]
    assert "recalibrated" in both["linear+bn"]["details"]
    assert both["linear+bn"]["floor"] == both["linear"]["floor"]  # that one always is


# --- the cache ------------------------------------------------------------------------------------------


def test_features_are_computed_once_per_encoder_and_split(run, monkeypatch):
    calls = []

    def counted(net, images, *args, **options):
        calls.append(len(images))
        return real(net, images, *args, **options)

    real = bench.features
    monkeypatch.setattr(bench, "features", counted)
    first = by_name(evaluate_run(run, protocols=["linear", "knn", "linear-sweep"]))
    assert calls == [48, 24, 48, 24]  # the run's encoder and the random one
    second = by_name(evaluate_run(run, protocols=["linear"]))
    assert len(calls) == 4
    assert second["linear"]["top1"] == first["linear"]["top1"]
    evaluate_run(run, protocols=["linear"], recalibrate_bn=True)
    assert len(calls) == 6  # other statistics, other features; the random encoder is the same
    for file in (run / "features").glob("*.npy"):
        file.write_bytes(file.read_bytes()[:-4])
    said = []
    third = by_name(evaluate_run(run, protocols=["linear"], say=said.append))
    assert len(calls) == 10
    assert len([line for line in said if "computed anew" in line]) == 4
    assert third["linear"]["top1"] == first["linear"]["top1"]
    evaluate_run(run, protocols=["linear"], cache=False)
    assert len(calls) == 14


# --- augmented images -----------------------------------------------------------------------------------

PREPROCESS = Preprocess(16, (0.49, 0.48, 0.45), (0.2, 0.2, 0.25))


def stream_of(images, batch_size, **crop):
    plan = ViewPlan((View(16, **crop),), PREPROCESS.mean, PREPROCESS.std)
    return Stream(images, plan, batch_size=batch_size, seed=3)


def small_encoder():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def test_linear_aug_is_sgd_on_a_frozen_encoder(made):
    """With crops that take all of an image and no flip, torch's own loop is easily written down."""
    images, test = open_source(str(made / "images")).train, open_source(str(made / "images")).test
    net = small_encoder().eval()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    protocol = LinearProtocol(lr=0.5, weight_decay=0.01, epochs=3, batch_size=20)
    stream = stream_of(images, 20, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip_p=0.0)
    x, y = features(net, images, PREPROCESS).values, images.labels
    x_test = features(net, test, PREPROCESS).values
    found = linear_aug(net, stream, y, x_test, test.labels, classes=CLASSES, protocol=protocol, seed=7)
    layer = nn.Linear(8, CLASSES)
    start = torch.randn(CLASSES, 9, generator=torch.Generator().manual_seed(7)) * 0.01
    with torch.no_grad():
        layer.weight.copy_(start[:, :-1])
        layer.bias.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    for step in range(6):
        index = stream.samples(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(x[index]), y[index]).backward()
        optimizer.step()
        schedule.step()
    assert found.score == score(layer(x_test), test.labels)
    assert found.labels == 48
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_augmented_views_are_anew_in_every_epoch(made):
    images = open_source(str(made / "images")).train
    stream = stream_of(images, 48, crop_scale=(0.08, 1.0))
    first, second = (batch.groups[0][batch.samples.argsort()] for batch in stream.batches(0, 2))
    assert (first - second).abs().mean() > 0.1


def test_finetuning_moves_all_weights_of_a_copy(made):
    images = open_source(str(made / "images")).train
    net = small_encoder().eval()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    models = []

    def count(model):
        models.append(model)
        return score(features(model, images, PREPROCESS).values, images.labels)

    def tune(epochs, lr=0.1):
        stream = stream_of(images, 16, crop_scale=(0.5, 1.0))
        return finetune(
            net, stream, images.labels, count, width=8, classes=CLASSES,
            protocol=FinetuneProtocol(epochs=epochs, batch_size=16, lr=lr),
        )  # fmt: skip

    found = tune(20)
    assert found.score.top1 > 0.5
    assert found.best[1] >= found.score.top1
    assert tune(20).score == found.score
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    tuned = models[0].encoder.state_dict()
    assert all(not torch.equal(tuned[k], v) for k, v in state.items() if v.is_floating_point())
    assert len(models) == 2 * 10  # every second epoch is looked at
    tune(25, lr=1e-3)
    assert len(models) == 20 + 9  # every third, and the last


def test_few_labels_are_finetuned_for_as_many_steps():
    protocol = FinetuneProtocol(epochs=30, batch_size=128)
    assert protocol.at_least(1000, 500).epochs == 334
    assert protocol.at_least(1000, 50_000).epochs == 30
    assert protocol.at_least(1000, 5).epochs == 1000


# --- curves ---------------------------------------------------------------------------------------------


def test_the_best_epoch_is_judged_beside_the_last_one(run, made, capsys):
    accuracy = {r["epoch"]: r["knn"] for r in RunFolder(run).records() if r["kind"] == "epoch"}
    best = max(accuracy, key=accuracy.get)
    for key, value in ecpp.load(run, epoch=best).state_dict().items():
        assert torch.equal(ecpp.load(run, epoch="best").state_dict()[key], value)
    # From here on the best epoch is the first, whichever it was: it is not the last.
    shutil.copy(run / "epochs" / "0001.pt", run / "best.pt")
    best = 1
    main(["evaluate", str(run), "--protocols", "knn"])
    last = (run / "evaluation.json").read_text()
    main(["evaluate", str(run), "--protocols", "knn", "--epoch", "best"])
    assert capsys.readouterr().out.strip().endswith("evaluation-best.json")
    main(["evaluate", str(run), "--protocols", "knn", "--epoch", str(best)])
    found = json.loads((run / "evaluation-best.json").read_text())
    assert found["weights"] == json.loads((run / f"evaluation-{best:04d}.json").read_text())["weights"]
    assert (found["epoch"], found["weights"] == json.loads(last)["weights"]) == ("best", False)
    assert (run / "evaluation.json").read_text() == last
    write_report([run], run / "report.html")

    first = ecpp.load(run, epoch=1)
    file = run / "best.safetensors"
    main(["export", str(run), "--to", "safetensors", "--out", str(file), "--epoch", "best"])
    assert torch.equal(load_file(file)["conv1.weight"], first.conv1.weight)
    card = (run / "best.safetensors.md").read_text()
    assert "the best one" in card
    assert "knn:" in card
    shutil.copy(
        run / "epochs" / "0002.pt", run / "best.pt"
    )  # training went on: what was measured is of other weights
    main(["export", str(run), "--to", "safetensors", "--out", str(file), "--epoch", "best"])
    assert (
        "Not evaluated: `ecpp evaluate RUN --epoch best` does it."
        in (run / "best.safetensors.md").read_text()
    )

    embedded = {}
    for epoch in ("1", "2"):
        main(["embed", str(run), str(made / "images"), "--out", str(run / f"{epoch}.npz"), "--epoch", epoch])
        embedded[epoch] = np.load(run / f"{epoch}.npz")["embedding"]
    assert not np.allclose(embedded["1"], embedded["2"], atol=1e-3)
    query = next((made / "images").rglob("*.png"))
    asked = ["neighbours", str(run), str(made / "images"), "--query", str(query), "--out", str(run / "n.png")]
    main([*asked, "--epoch", "best"])


def test_an_epoch_that_was_not_kept_is_named(run, capsys):
    (run / "best.pt").unlink()
    for epoch, hint in (("best", "--keep-best"), ("7", "epoch 7, but of 1 to 2"), ("0", "a number from 1")):
        with pytest.raises(SystemExit):
            main(["evaluate", str(run), "--epoch", epoch])
        assert hint in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), "--curve", "--protocols", "knn"])
    assert "--protocols does nothing beside --curve" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), "--curve", "--no-cache"])
    assert "--no-cache does nothing beside --curve" in capsys.readouterr().err
    with pytest.raises(ValueError, match="best, but is 'last'"):
        ecpp.load(run, epoch="last")


def test_a_curve_judges_every_kept_epoch(run, monkeypatch):
    curve = curve_of_run(run)
    assert json.loads((run / "curve.json").read_text()) == curve
    assert [p["epoch"] for p in curve["points"]] == [1, 2]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [r for r in lines if r["kind"] == "epoch"]
    for point, record in zip(curve["points"], logged, strict=True):
        assert all(point[k] == record[k] for k in ("step", "pairs", "view_passes", "seconds"))
    linear = by_name(evaluate_run(run, protocols=["linear"]))["linear"]
    assert curve["points"][-1]["top1"] == linear["top1"]  # the same protocol, the same weights
    assert curve["floor"] == linear["floor"]
    assert (curve["labels"], curve["tested"]) == (48, 24)
    monkeypatch.setattr(bench, "features", None)  # nothing is asked again
    assert curve_of_run(run) == curve
    page = write_report([run], run / "report.html").read_text()
    for axis in ("by epoch", "by processed pairs", "by view passes", "by wall time"):
        assert f"Linear accuracy, {axis}" in page
    assert f"Random encoder: {'ECPP' if 'ECPP' in page else 'SimCLR'}" in page


def test_the_encoder_of_an_epoch_can_be_loaded(run):
    last, newest = (ecpp.load(run, epoch=e).state_dict() for e in (2, None))
    assert all(torch.equal(last[k], newest[k]) for k in newest)
    assert not torch.equal(ecpp.load(run, epoch=1).conv1.weight, newest["conv1.weight"])
    with pytest.raises(FileNotFoundError, match="kept no encoder of epoch 9"):
        ecpp.load(run, epoch=9)


def test_a_curve_needs_kept_epochs(run):
    shutil.rmtree(run / "epochs")
    with pytest.raises(ValueError, match="--keep-epochs"):
        curve_of_run(run)


# --- mistakes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "hint"), [
    ({"protocols": ["linaer"]}, "there is no protocol 'linaer': take some of linear, linear-sweep"),
    ({"workers": -1}, "--workers"),
    ({"epochs": 0}, "--epochs"),
    ({"lr": -0.5}, "--lr"),
    ({"momentum": 1.0}, "--momentum"),
])  # fmt: skip
def test_mistakes_are_sentences(run, options, hint):
    with pytest.raises(ValueError, match=hint):
        evaluate_run(run, **options)
    assert not (run / "evaluation.json").exists()


def test_protocols_that_train_run_in_one_process(run, monkeypatch):
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(ValueError, match="finetune trains in one process"):
        evaluate_run(run, protocols=["finetune"])


@pytest.mark.slow
def test_torchrun_counts_as_one_process(run):
    names = ["linear", "linear-sweep", "knn", "knn-grid", "semi-10"]
    alone = by_name(evaluate_run(run, protocols=names, cache=False))
    (run / "evaluation.json").unlink()
    words = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "ecpp",
        "evaluate",
        str(run),
    ]
    done = subprocess.run(
        [sys.executable, "-m", *words, "--protocols", ",".join(names)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("evaluation.json") == 1  # one of them speaks
    shared = by_name(json.loads((run / "evaluation.json").read_text()))
    for name in names:
        for key in ("top1", "top5", "per_class", "floor", "tested", "labels", "chosen"):
            assert shared[name].get(key) == alone[name].get(key), (name, key)


def test_the_command_takes_them_all(run, capsys):
    main(["evaluate", str(run), "--protocols", "knn, linear-sweep", "--no-cache", "--recalibrate-bn"])
    shown = capsys.readouterr()
    assert "knn+bn" in shown.out
    assert "linear-sweep+bn: " in shown.err
    assert not (run / "features").exists()
    main(["evaluate", str(run), "--curve"])
    assert "epoch 2: linear" in capsys.readouterr().err
    assert RunFolder(run).curve.exists()
    with pytest.raises(SystemExit) as e:
        main(["evaluate", str(run), "--protocols", "umap"])
    assert e.value.code == 2


def test_keeping_epochs_makes_no_other_run(made, tmp_path):
    config = replace(RunFolder(made / "run").config(), keep_epochs=False, epochs=1)
    pretrain(config, tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run" / "epochs").exists()
    pretrain(replace(config, keep_epochs=True), tmp_path / "run", console=QUIET)


@pytest.mark.parametrize(
    "option", [{"lr": 0.5}, {"epochs": 3}, {"momentum": 0.3}], ids=lambda option: next(iter(option))
)
def test_an_option_that_no_protocol_reads_is_refused(tmp_path, option):
    with pytest.raises(ValueError, match=f"--{next(iter(option))} belongs to other protocols"):
        evaluate_run(tmp_path, protocols=["knn"], **option)
