"""What leaves the house is what the run holds, or nothing leaves."""

import json
import shutil
from dataclasses import replace

import pytest
import timm
import timm.data
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_runs import make_run
from test_cli import call, fails

from ecpp.evaluate import Preprocess
from ecpp.export import FORMATS, check_export, export_run, verify
from ecpp.export.formats import choose
from ecpp.export.trained import trained
from ecpp.model import create_encoder, timm_entry

ENCODERS = {
    "resnet18": {"encoder": "resnet18", "size": 96, "small": 64, "width": None},
    "resnet50": {"encoder": "resnet50", "size": 224, "small": 96, "width": None},
    "convnext": {"encoder": "convnext_atto", "size": 64, "small": 32, "width": None},
    "vit": {"encoder": "vit_tiny_patch16_224", "size": 96, "small": 48, "width": None},
    "narrow": {"encoder": "resnet10", "size": 32, "small": 20, "width": 4},
}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("narrow") / "run", channels=1)


@pytest.fixture(scope="module")
def standard(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("standard") / "run", **ENCODERS["resnet18"])


@pytest.fixture(scope="module")
def exported(narrow, tmp_path_factory):
    """One file of weights, which tests copy and damage."""
    out = tmp_path_factory.mktemp("exported") / "narrow.safetensors"
    export_run(narrow, "safetensors", out)
    return out


def export(run, to, folder):
    out = folder / f"encoder{FORMATS[to].suffix}"
    proof = export_run(run, to, out)
    assert proof.difference <= 1e-5
    assert sorted(p.name for p in folder.iterdir()) == [out.name, f"{out.name}.md"]
    return out, proof


# --- what is written ------------------------------------------------------------------------------------


def test_weights_come_back_through_timm_and_say_what_they_are(narrow, exported):
    with safe_open(exported, framework="pt") as file:
        about = json.loads(file.metadata()["ecpp"])
    assert about["timm"] == {
        "name": "ecpp_resnet10",
        "arguments": {"num_classes": 0, "in_chans": 1, "width": 4, "small_stem": True},
    }
    assert about["preprocess"]["input_size"] == [1, 32, 32]
    assert (about["preprocess"]["mean"], about["preprocess"]["std"]) == ([0.5], [0.25])
    assert about["run"] | {"K": 4, "method": "ECPP×4", "data": "patterns:200", "steps": 9} == about["run"]
    encoder = timm.create_model(
        about["timm"]["name"], checkpoint_path=str(exported), **about["timm"]["arguments"]
    )
    t = trained(narrow)
    x = t.inputs(3, 32)
    with torch.no_grad():
        assert torch.equal(encoder.eval()(x), t.encoder(x))


@pytest.mark.parametrize("to", ["onnx", pytest.param("torch-export", marks=pytest.mark.slow)])
def test_graphs_come_back(narrow, to, tmp_path):
    out, proof = export(narrow, to, tmp_path)
    assert proof.weights == (60 if to == "onnx" else 72)  # a graph without training counts no batches
    assert {shape[0] for shape in proof.batches} == {1, 3}
    about = json.loads(FORMATS[to].metadata(out))
    assert about["preprocess"]["interpolation"] == "bilinear"


def test_torchvision_takes_a_standard_resnet(standard, tmp_path):
    _, proof = export(standard, "torchvision", tmp_path)
    assert proof.weights == 120
    assert {shape[-1] for shape in proof.batches} == {96, 64}


def test_the_card_holds_the_code_that_was_run(narrow, exported):
    card = exported.with_name(f"{exported.name}.md").read_text()
    t = trained(narrow)
    assert FORMATS["safetensors"].load(t, exported.name) in card
    for words in ("ECPP×4", "K = 4", "3 of 100", "patterns:200", "mean 0.5", "72/72 keys", "Not evaluated"):
        assert words in card, words


def test_the_card_shows_every_number_with_its_protocol(narrow, tmp_path):
    run = shutil.copytree(narrow, tmp_path / "run")
    results = [
        {
            "protocol": "knn",
            "top1": 0.5,
            "floor": 0.25,
            "floor_is": "a random encoder",
            "labels": 200,
            "source": "/secret/folder/birds",
        }
    ]
    (run / "evaluation.json").write_text(json.dumps({"source": "/secret/folder/birds", "results": results}))
    from ecpp.export.card import card

    t = trained(run)
    text = card(t, "onnx", FORMATS["onnx"], "x.onnx", "proof")
    assert "- knn: 50.00% top-1; 25.00% for a random encoder; on birds; 200 labels" in text
    assert "secret" not in text + t.metadata()


@pytest.mark.slow
def test_timm_loads_without_ecpp(standard, tmp_path, monkeypatch):
    """The fresh process of --to timm must not lean on us."""
    from ecpp.export import check

    answers = []
    load_elsewhere = check._load_elsewhere

    def look(file, format_, t, batches):
        wrong = replace(format_, use=format_.use + "\nimport sys\nassert 'ecpp' not in sys.modules")
        answers.append(load_elsewhere(file, wrong, t, batches))
        return answers[-1]

    monkeypatch.setattr(check, "_load_elsewhere", look)
    export(standard, "timm", tmp_path)
    assert len(answers) == 1


# --- preprocessing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [32, 64, 65, 96, 160, 224, 225, 288])
def test_timm_prepares_images_as_we_do(narrow, size):
    preprocess = Preprocess(size, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    t = replace(trained(narrow), preprocess=preprocess, channels=3)
    transform = timm.data.create_transform(**t.data_config())
    pixels = torch.randint(
        0, 256, (1, 3, 75, 90), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    pixels = torch.nn.functional.interpolate(pixels.float(), (300, 360), mode="bilinear").byte()
    from torchvision.transforms.functional import to_pil_image

    theirs = transform(to_pil_image(pixels[0]))
    ours = preprocess.normalise(preprocess.geometry(pixels))[0]
    assert theirs.shape == ours.shape == (3, size, size)
    assert (theirs - ours).abs().max() < 2.1 / 255 / 0.2  # rounding, twice


# --- our encoders in timm's registry --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options"), [
    ("resnet18", {"size": 224}), ("resnet18", {"size": 32}), ("resnet10", {"size": 224}),
    ("resnet50", {"size": 32, "width": 8, "channels": 1}), ("convnext_atto", {"size": 64, "channels": 4}),
    ("vit_tiny_patch16_224", {"size": 48}),
])  # fmt: skip
def test_timm_builds_what_we_build(name, options):
    entry = timm_entry(name, **options)
    ours, theirs = create_encoder(name, **options), timm.create_model(entry.name, **entry.arguments)
    shapes = [{k: v.shape for k, v in net.state_dict().items()} for net in (ours, theirs)]
    assert shapes[0] == shapes[1]


def test_an_entry_is_a_model_like_timms_own():
    overlay = {"mean": (0.5,), "std": (0.2,), "input_size": (1, 24, 24)}
    net = timm.create_model(
        "ecpp_resnet10", num_classes=7, width=4, in_chans=1, pretrained_cfg_overlay=overlay
    )
    x = torch.randn(2, 1, 24, 24)
    assert net(x).shape == (2, 7)
    assert net.get_classifier().out_features == net.num_classes == 7
    assert net.forward_head(net.forward_features(x), pre_logits=True).shape == (2, net.num_features)
    net.reset_classifier(0)
    assert net(x).shape == (2, 32)
    config = timm.data.resolve_model_data_config(net)
    assert (config["mean"], config["input_size"]) == ((0.5,), (1, 24, 24))
    with pytest.raises(RuntimeError, match="No pretrained weights"):
        timm.create_model("ecpp_resnet10", pretrained=True)


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "channels", "to", "able"), [
    ("narrow", 3, "timm", "safetensors, torch-export, onnx"),
    ("narrow", 3, "torchvision", "safetensors, torch-export, onnx"),
    ("resnet18", 1, "torchvision", "timm, safetensors, torch-export, onnx"),
    ("convnext", 3, "torchvision", "timm, safetensors, torch-export, onnx"),
])  # fmt: skip
def test_a_format_that_cannot_hold_an_encoder_names_those_that_can(kind, channels, to, able, tmp_path):
    run = make_run(tmp_path / "run", **ENCODERS[kind], channels=channels)
    with pytest.raises(ValueError, match=f"{to} cannot hold .*Formats that can: {able}$"):
        export_run(run, to, tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


def test_mistakes_end_in_a_sentence(narrow, exported, tmp_path, capsys, monkeypatch):
    assert "ends in .onnx" in fails(capsys, "export", narrow, "--to", "onnx", "--out", tmp_path / "x.pt")
    assert "one of --out" in fails(capsys, "export", narrow, "--to", "onnx")
    assert "no file" in fails(capsys, "export", narrow, "--to", "onnx", "--check", tmp_path / "x.onnx")
    assert "is no run" in fails(capsys, "export", tmp_path, "--to", "onnx", "--out", tmp_path / "x.onnx")
    monkeypatch.setattr("ecpp.export.writers.find_spec", lambda name: None)
    assert "pip install 'ecpp[onnx]'" in fails(
        capsys, "export", narrow, "--to", "onnx", "--out", tmp_path / "x.onnx"
    )
    assert not list(tmp_path.iterdir())


def flip(path, at=-5):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def test_a_damaged_file_is_refused_and_stays_where_it_is(narrow, exported, tmp_path, capsys):
    file = shutil.copy(exported, tmp_path / exported.name)
    flip(file)
    message = fails(capsys, "export", narrow, "--to", "safetensors", "--check", file)
    assert "71/72 keys match" in message
    assert file.exists()


def test_an_export_that_comes_out_wrong_leaves_nothing(narrow, tmp_path, capsys, monkeypatch):
    def write(t, path, write=FORMATS["safetensors"].write):
        write(t, path)
        flip(path)

    monkeypatch.setitem(FORMATS, "safetensors", replace(FORMATS["safetensors"], write=write))
    out = tmp_path / "x.safetensors"
    assert "keys match" in fails(capsys, "export", narrow, "--to", "safetensors", "--out", out)
    assert not list(tmp_path.iterdir())


def damage(path, how):
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
        return
    if how == "empty":
        path.write_bytes(b"")
        return
    state = load_file(path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["ecpp"])
    if how == "without a key":
        del state["bn1.weight"]
    elif how == "with a key more":
        state["fc.weight"] = torch.zeros(2, 2)
    elif how == "two weights swapped":
        a, b = "layer1.0.bn1.weight", "layer1.0.bn2.weight"
        state[a], state[b] = state[b], state[a]
    elif how == "another normalisation":
        about["preprocess"]["mean"] = [0.4]
    save_file(state, path, metadata={"ecpp": json.dumps(about)} if how != "no metadata" else None)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "reason"), [
    ("cut", "the call that loads it fails"), ("empty", "the call that loads it fails"),
    ("without a key", "Missing key"), ("with a key more", "Unexpected key"),
    ("two weights swapped", "70/72 keys match"), ("another normalisation", "metadata are not this run's"),
    ("no metadata", "metadata are not this run's"),
])  # fmt: skip
def test_every_damage_is_seen(narrow, exported, tmp_path, how, reason):
    file = shutil.copy(exported, tmp_path / exported.name)
    damage(file, how)
    with pytest.raises(ValueError, match="does not hold the run's encoder") as e:
        check_export(narrow, "safetensors", file)
    assert reason in str(e.value) or reason.split()[0] in str(e.value)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_a_damaged_graph_is_refused(narrow, to, tmp_path):
    out, _ = export(narrow, to, tmp_path)
    t = trained(narrow)
    half = t.encoder.layer4[0].conv1.weight.numpy().tobytes()[:64]
    at = out.read_bytes().find(half)
    assert at > 0
    flip(out, at + 3)
    with pytest.raises(ValueError, match="does not hold the run's encoder"):
        verify(out, choose(to, t), t)


@pytest.mark.slow
def test_a_good_file_passes_again(narrow, exported, capsys):
    call("export", narrow, "--to", "safetensors", "--check", exported)
    assert "72/72 keys match" in capsys.readouterr().out


@pytest.mark.slow
def test_another_runs_file_is_refused(narrow, exported, tmp_path):
    other = make_run(tmp_path / "other", channels=1, seed=1)
    with pytest.raises(ValueError, match="keys match"):
        check_export(other, "safetensors", exported)


def test_features_that_are_not_finite_are_no_export(narrow, tmp_path):
    t = trained(narrow)
    t.encoder.bn1.weight.fill_(float("nan"))
    FORMATS["safetensors"].write(t, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="not finite"):
        verify(tmp_path / "x.safetensors", FORMATS["safetensors"], t)


# --- every encoder in every format ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", ENCODERS)
def test_every_format_gives_the_runs_features(kind, channels, tmp_path):
    run = make_run(tmp_path / "run", **ENCODERS[kind], channels=channels)
    t = trained(run)
    able = [to for to, format_ in FORMATS.items() if format_.refusal(t) is None]
    assert {"safetensors", "onnx", "torch-export"} <= set(able)
    assert ("torchvision" in able) == (kind in ("resnet18", "resnet50") and channels == 3)
    if "timm" in able:
        able.remove("safetensors")  # the same file and call
    for to in able:
        out, proof = export(run, to, tmp_path / to)
        assert proof.weights >= 60
        assert out.stat().st_size > 1000
