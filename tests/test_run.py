"""Whole runs, small ones: what is written, what goes on after a stop, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from rich.console import Console

import ecpp
from ecpp.config import Config
from ecpp.method import METHODS
from ecpp.recipes import RECIPES
from ecpp.report import write_report
from ecpp.run import RunFolder, build, evaluate_run, go, pretrain, resume, watch
from ecpp.run.pictures import neighbours_picture, views_picture
from ecpp.train import load_checkpoint

QUIET = Console(quiet=True)
TINY = Config(
    source="patterns:200",
    views=3,
    encoder="resnet10",
    width=4,
    batch_size=16,
    epochs=2,
    threads=1,
    log_every=4,
)


class Stop(Exception):
    """Stands for a kill in the middle of a run."""


def weights(run):
    return load_checkpoint(RunFolder(run).checkpoint)["method"]


def records(run, kind):
    lines = map(json.loads, RunFolder(run).metrics.read_text().splitlines())
    return [r for r in lines if r["kind"] == kind]


def same_weights(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def die_in_epoch(monkeypatch, epoch):
    """The run dies while this epoch is judged, before the epoch is in a checkpoint."""
    calls = []

    def features(*args, **options):
        calls.append(1)
        if len(calls) > 2 * (epoch - 1):  # each epoch asks for the features of two sides
            raise Stop
        return real(*args, **options)

    real = watch.features
    monkeypatch.setattr(watch, "features", features)


def test_a_run_writes_what_it_promises(tmp_path):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    about = json.loads((run / "run.json").read_text())
    assert about["name"] == "ECPP×3"
    assert about["config"] == TINY.to_json()
    resolved = Config.from_json(about["resolved"])
    assert (resolved.large, resolved.small, resolved.n_simclr, resolved.look) == (32, 32, 2, "cifar")
    assert resolved.lr == pytest.approx(0.4 * 16 / 256)
    assert about["plan"]["pairs_per_image"] == 3
    epochs = records(run, "epoch")
    assert [r["epoch"] for r in epochs] == [1, 2]
    assert epochs[-1]["step"] == 2 * (200 // 16)
    assert epochs[-1]["view_passes"] == 24 * 16 * 3
    assert epochs[-1]["pairs"] == 24 * 16 * 3
    assert all(0 <= r["knn"] <= 1 for r in epochs)
    steps = records(run, "step")
    assert [r["step"] for r in steps] == [4, 8, 12, 16, 20, 24]
    assert {"loss", "lr", "views_per_second", "wait_share", "embedding_std", "positive_similarity"} <= steps[
        0
    ].keys()
    assert [f.name for f in run.glob(".*")] == [".lock"]
    encoder = ecpp.load(run)
    assert not encoder.training
    assert encoder(torch.zeros(2, 3, 32, 32)).shape == (2, encoder.num_features)


@pytest.mark.parametrize(
    ("method", "precision"), [*((m, "fp32") for m in METHODS), ("simclr", "bf16"), ("byol", "bf16")]
)
def test_a_stopped_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path, monkeypatch, method, precision):
    config = replace(
        TINY, epochs=3, method=method, precision=precision, source="patterns:100", projector_dim=8
    )
    pretrain(config, tmp_path / "whole", console=QUIET)
    with monkeypatch.context() as m:
        die_in_epoch(m, 2)
        with pytest.raises(Stop):
            pretrain(config, tmp_path / "stopped", console=QUIET)
    assert load_checkpoint(tmp_path / "stopped" / "checkpoint.pt")["step"] == 6
    assert records(tmp_path / "stopped", "step")[-1]["step"] == 12
    resume(tmp_path / "stopped", console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    for kind in ("step", "epoch"):
        whole, stopped = (records(tmp_path / name, kind) for name in ("whole", "stopped"))
        assert [r["step"] for r in whole] == [r["step"] for r in stopped]
        assert [r["loss"] for r in whole] == pytest.approx([r["loss"] for r in stopped], rel=1e-6)


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path, monkeypatch):
    pretrain(TINY, tmp_path / "whole", console=QUIET)
    append = RunFolder.append

    def die(folder, record):
        if record["step"] == 20:
            raise Stop
        append(folder, record)

    with monkeypatch.context() as m:
        m.setattr(go, "SAVE_EVERY", 0.0)
        m.setattr(RunFolder, "append", die)
        with pytest.raises(Stop):
            pretrain(TINY, tmp_path / "stopped", console=QUIET)
    assert load_checkpoint(tmp_path / "stopped" / "checkpoint.pt")["step"] == 16
    resume(tmp_path / "stopped", console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    for key in ("step", "loss", "knn"):
        whole, stopped = (
            [r[key] for r in records(tmp_path / name, "epoch")] for name in ("whole", "stopped")
        )
        assert whole == pytest.approx(stopped, rel=1e-6)


def test_a_diverged_run_stops_with_a_sentence(tmp_path):
    config = replace(TINY, lr=1e6, schedule="constant", precision="fp32")
    with pytest.raises(ValueError, match="training diverged"):
        pretrain(config, tmp_path / "run", console=QUIET)


def test_weights_that_a_last_step_spoils_are_not_saved(tmp_path):
    config = replace(TINY, source="patterns:20", batch_size=20, epochs=1, lr=1e6, precision="fp32", clip=None)
    method = build.build_method

    def spoiled(config, prepare):
        made = method(config, prepare)
        made.after_step = lambda _: made.encoder.conv1.weight.data.fill_(torch.inf)
        return made

    with pytest.MonkeyPatch.context() as m:
        m.setattr(build, "build_method", spoiled)
        with pytest.raises(ValueError, match="largest weight or statistic became inf"):
            pretrain(config, tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_run_without_a_checkpoint_may_start_anew_with_another_config(tmp_path):
    with pytest.raises(ValueError, match="diverged"):
        pretrain(
            replace(TINY, lr=1e6, schedule="constant", precision="fp32"), tmp_path / "run", console=QUIET
        )
    pretrain(TINY, tmp_path / "run", console=QUIET)
    assert RunFolder(tmp_path / "run").config().lr is None


def test_one_process_at_a_time(tmp_path):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    (run / ".checkpoint.pt.123.tmp").write_bytes(b"left by a killed process")
    with RunFolder(run).locked():
        assert not (run / ".checkpoint.pt.123.tmp").exists()
        with pytest.raises(ValueError, match="another process is training"):
            resume(run, console=QUIET)
    resume(run, console=QUIET)


@pytest.mark.parametrize("content", ["[]", "null", "{", '{"config": 3}', b"\xff\xfe"])
def test_a_damaged_run_json_is_named(tmp_path, content):
    pretrain(replace(TINY, epochs=1), tmp_path / "run", console=QUIET)
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "run" / "run.json").write_bytes(content)
    for call in (resume, ecpp.load):
        with pytest.raises(ValueError, match=r"run\.json"):
            call(tmp_path / "run")


def test_damaged_lines_of_metrics_are_named_but_a_cut_off_last_one_is_forgiven(tmp_path):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole + '{"kind": "st')
    resume(run, console=QUIET)
    assert (run / "metrics.jsonl").read_text() == whole
    (run / "metrics.jsonl").write_text("[]\n" + whole)
    with pytest.raises(ValueError, match=r"line 1 of .*metrics\.jsonl"):
        resume(run, console=QUIET)


@pytest.mark.parametrize("state", [[], {}, {"method": {}}, {"method": {}, "step": "a"}])
def test_a_checkpoint_of_something_else_is_named(tmp_path, state):
    run = tmp_path / "run"
    pretrain(replace(TINY, epochs=1), run, console=QUIET)
    torch.save(state, run / "checkpoint.pt")
    with pytest.raises(ValueError, match="checkpoint"):
        resume(run, console=QUIET)


def test_views_that_shrink_to_a_pixel_need_fp32_on_a_cpu(tmp_path):
    config = replace(TINY, large=8, small=4, views=4, device="cpu", precision="bf16")
    with pytest.raises(ValueError, match="--precision fp32"):
        pretrain(config, tmp_path / "run", console=QUIET)
    pretrain(replace(config, precision="fp32", epochs=1), tmp_path / "run", console=QUIET)


def test_pairs_are_those_of_the_graph(tmp_path):
    run = tmp_path / "run"
    pretrain(replace(TINY, views=4, pairing="core", epochs=1), run, console=QUIET)
    assert json.loads((run / "run.json").read_text())["plan"]["pairs_per_image"] == 3
    assert records(run, "epoch")[-1]["pairs"] == 12 * 16 * 3


def test_a_run_goes_on_with_its_own_images_alone(tmp_path, monkeypatch, capsys):
    source = folder_of_images(tmp_path / "images", [(32, 32)])
    (tmp_path / "images" / "train" / "notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)
    config = replace(TINY, source="images", epochs=1, batch_size=8)
    pretrain(config, tmp_path / "run", console=Console(stderr=True))
    said = " ".join(capsys.readouterr().err.split())
    assert "24 images of 2 classes, 24 held out" in said
    assert "1 .txt" in said
    monkeypatch.chdir("/")
    resume(tmp_path / "run", console=QUIET)
    (tmp_path / "images").rename(tmp_path / "moved")
    pretrain(replace(config, source=str(tmp_path / "moved")), tmp_path / "run", console=QUIET)
    (tmp_path / "moved" / "train" / "class0" / "0.png").unlink()
    with pytest.raises(ValueError, match="have changed since it began"):
        pretrain(replace(config, source=str(tmp_path / "moved")), tmp_path / "run", console=QUIET)
    assert source


def test_loading_leaves_the_random_numbers_of_the_caller_alone(tmp_path):
    pretrain(replace(TINY, epochs=1), tmp_path / "run", console=QUIET)
    before = torch.get_rng_state()
    encoder = ecpp.load(tmp_path / "run")
    assert torch.equal(before, torch.get_rng_state())
    assert encoder.preprocess.size == 32
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with pytest.raises(FileNotFoundError, match="no checkpoint yet"):
        ecpp.load(tmp_path / "run")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_left_out_and_named(tmp_path, workers):
    source = folder_of_images(tmp_path / "images", [(40, 60), (90, 50)])
    broken = tmp_path / "images" / "train" / "class0" / "0.png"
    broken.write_bytes(b"no image")
    config = replace(TINY, source=source, epochs=2, batch_size=24, large=32, workers=workers)
    pretrain(config, tmp_path / "run", console=QUIET)
    (record,) = records(tmp_path / "run", "unreadable")
    assert record["name"] == str(broken)
    assert "no image of a known kind" in record["reason"]
    assert write_report([tmp_path / "run"], tmp_path / "report.html").exists()


@pytest.mark.parametrize("channels", [1, 5])
def test_other_channels_than_three_go_all_the_way(tmp_path, channels, capsys):
    for split, count in (("train", 12), ("test", 4)):
        for i in range(count):
            bands = np.random.default_rng(i).integers(0, 65536, (channels, 20, 24), dtype=np.uint16)
            file = tmp_path / "images" / split / f"class{i % 2}" / f"{i}.tif"
            file.parent.mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(file, bands if channels > 1 else bands[0], photometric="minisblack")
    config = replace(TINY, source=str(tmp_path / "images"), batch_size=4, channels=channels)
    pretrain(config, tmp_path / "run", console=Console(stderr=True))
    assert "saturation, hue and grey make no sense" in " ".join(capsys.readouterr().err.split())
    resolved = RunFolder(tmp_path / "run").resolved()
    assert len(resolved.mean) == len(resolved.std) == channels
    assert resolved.mean == pytest.approx([0.5] * channels, abs=0.02)  # that of noise
    assert evaluate_run(tmp_path / "run")["results"][0]["tested"] == 4
    assert ecpp.load(tmp_path / "run")(torch.zeros(1, channels, 24, 24)).shape == (1, 32)
    assert views_picture(resolved, tmp_path / "views.png", images=2).exists()
    assert neighbours_picture(tmp_path / "run", tmp_path / "n.png", queries=2, neighbours=2).exists()


def test_the_same_command_goes_on_and_another_config_is_refused(tmp_path, capsys):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    before = (run / "metrics.jsonl").read_text()
    pretrain(replace(TINY, workers=2, log_every=1), run, console=Console(stderr=True))
    assert "complete" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_text() == before
    with pytest.raises(ValueError, match=r"tau: 0\.2 there, 0\.5 now"):
        pretrain(replace(TINY, tau=0.5), run, console=QUIET)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("do not touch")
    with pytest.raises(ValueError, match="is no run"):
        pretrain(TINY, other, console=QUIET)
    assert [f.name for f in other.iterdir()] == ["thesis.txt"]


def test_a_damaged_checkpoint_is_named(tmp_path):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    for name in ("checkpoint-previous.pt", "checkpoint.pt"):
        (run / name).write_bytes((run / name).read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"checkpoint.*\.pt cannot be read"):
        resume(run, console=QUIET)
    with pytest.raises(FileNotFoundError, match="is no run"):
        resume(tmp_path / "nothing", console=QUIET)


def folder_of_images(root, sizes, classes=2, each=12):
    g = torch.Generator().manual_seed(0)
    for split in ("train", "test"):
        for c in range(classes):
            (root / split / f"class{c}").mkdir(parents=True)
            for i in range(each):
                h, w = sizes[i % len(sizes)]
                pixels = torch.randint(0, 128, (h, w, 3), generator=g, dtype=torch.uint8)
                pixels[..., c] += 100
                Image.fromarray(pixels.numpy()).save(root / split / f"class{c}" / f"{i}.png")
    return str(root)


def test_images_of_several_sizes_train_the_same_with_any_number_of_workers(tmp_path):
    source = folder_of_images(tmp_path / "images", [(40, 60), (90, 50), (64, 64)])
    config = replace(TINY, source=source, epochs=1, batch_size=8, large=32, small=16, views=4)
    for workers in (0, 2):
        pretrain(replace(config, workers=workers), tmp_path / f"run{workers}", console=QUIET)
    assert same_weights(tmp_path / "run0", tmp_path / "run2")
    result = evaluate_run(tmp_path / "run0")
    assert {r["protocol"]: r["labels"] for r in result["results"]} == {"linear": 24, "knn": 24}


def test_evaluation_says_what_its_numbers_are(tmp_path):
    run = tmp_path / "run"
    source = folder_of_images(tmp_path / "images", [(32, 32)])
    pretrain(replace(TINY, source=source, epochs=1, batch_size=8), run, console=QUIET)
    result = evaluate_run(run)
    assert json.loads((run / "evaluation.json").read_text()) == result
    for r in result["results"]:
        assert r["top1"] >= 0.9  # the colour of a class is plain to see
        assert 0 <= r["floor"] <= 1
        assert (r["labels"], r["tested"]) == (24, 24)
        assert "frozen" in r["details"]
    half = evaluate_run(run, source, limit=12)
    assert half["results"][0]["labels"] == 12
    assert evaluate_run(run, "patterns:100")["classes"] == 10


def test_evaluation_without_labels_says_what_to_do(tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for i in range(16):
        Image.new("RGB", (32, 32), (i * 10, 0, 0)).save(flat / f"{i}.png")
    run = tmp_path / "run"
    pretrain(replace(TINY, source=str(flat), epochs=1, batch_size=8), run, console=QUIET)
    assert "knn" not in records(run, "epoch")[0]
    with pytest.raises(ValueError, match="one folder per class"):
        evaluate_run(run)
    labelled = folder_of_images(tmp_path / "images", [(32, 32)])
    with pytest.raises(ValueError, match="--val"):
        evaluate_run(run, labelled + "/train")
    assert evaluate_run(run, labelled + "/train", val=labelled + "/test")["results"]


def test_the_encoder_is_tried_at_every_size_before_anything_is_written(tmp_path):
    config = replace(TINY, encoder="vit_tiny_patch16_224", width=None, large=32, small=20, views=4)
    with pytest.raises(ValueError, match="views of 20 px"):
        pretrain(config, tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()


def test_pictures(tmp_path):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    views_picture(TINY, run / "views.png", images=3)
    neighbours_picture(run, run / "neighbours.png", queries=2, neighbours=3, among=50)
    for name in ("views.png", "neighbours.png"):
        with Image.open(run / name) as image:
            assert min(image.size) > 100
    with pytest.raises(ValueError, match=r"\.png"):
        views_picture(TINY, run / "views.jpg")


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_name_what_they_settle(name):
    config = RECIPES[name]("patterns")
    assert config.pair_reduction == "sum"
    assert (config.batch_size, config.tau, config.optimizer, config.momentum) == (64, 0.2, "sgd", 0.9)
    assert config.warmup == 10
    small = name == "cifar10"
    assert (config.large, config.small) == ((32, 32) if small else (224, 96))
    assert config.projector_layers == (2 if small else 3)
    assert config.weight_decay == (2e-5 if name == "imagenet1k" else 1e-4)
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(("change", "hint"), [
    ({"veiws": 3}, "is 'views' meant"),
    ({"views": "3"}, "'views' of a config should be int"),
    ({"views": True}, "'views' of a config should be int"),
    ({"method": "moco"}, "'method'"),
    ({"crop_scale": [0.2]}, "'crop_scale'"),
    ({"tau": -1.0}, "--tau must be a number above 0"),
    ({"ema": 1.0}, "--ema"),
    ({"ema": 0.9}, "--ema belongs to --method byol"),
    ({"method": "byol", "tau": 0.5}, "--tau belongs to --method simclr"),
    ({"method": "byol", "loss": "vanilla"}, "--loss belongs"),
    ({"optimizer": "adamw", "momentum": 0.5}, "--momentum belongs"),
    ({"warmup": 2.0}, "--warmup 2 leaves nothing of 2 epochs"),
])  # fmt: skip
def test_a_config_is_read_strictly(change, hint):
    with pytest.raises(ValueError, match=hint):
        Config.from_json(TINY.to_json() | change)


def test_a_config_lacks_nothing():
    values = TINY.to_json()
    del values["tau"]
    with pytest.raises(ValueError, match="lacks the keys tau"):
        Config.from_json(values)
