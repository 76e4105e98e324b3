"""What a scan says, each figure against an independent calculation; and folders as the real world has them."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from pictures import as_pil, fill, odd_folder, picture, save
from PIL import Image
from rich.console import Console

from ecpp.cli import main
from ecpp.config import Config
from ecpp.data import near, open_source
from ecpp.data.each import each
from ecpp.data.pack import pack
from ecpp.data.scan import scan
from ecpp.run import RunFolder, pretrain


def smooth(seed, height=60, width=80):
    """A picture with large shapes, as photographs have."""
    small = picture(5, 6, seed=seed)[None].float()
    return F.interpolate(small, (height, width), mode="bicubic")[0].clamp(0, 255).to(torch.uint8)


def records(run, kind):
    lines = map(json.loads, RunFolder(run).metrics.read_text().splitlines())
    return [r for r in lines if r["kind"] == kind]


# --- each figure ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Splits, classes, sizes, modes and duplicates, each known."""
    root = tmp_path_factory.mktemp("made")
    for i in range(5):
        save(root / f"train/a/{i}.png", smooth(i))
    for i in range(5, 8):
        save(root / f"train/b/{i}.jpg", smooth(i, 31 + i, 90))
    as_pil(smooth(8)).convert("L").save(root / "train/b/grey.png")
    as_pil(smooth(9)).convert("RGBA").save(root / "train/b/rgba.png")
    save(root / "train/b/again.bmp", smooth(0))  # equal pixels in another format, and in another class
    save(
        root / "train/a/smaller.jpg", smooth(5, 36, 90), quality=70
    )  # 5.jpg is as large, but less compressed
    save(root / "train/a/plain.png", torch.full((3, 60, 80), 77, dtype=torch.uint8))
    save(root / "train/b/plain.png", torch.full((3, 50, 50), 200, dtype=torch.uint8))
    save(root / "test/a/10.png", smooth(10))
    save(root / "test/b/leak.png", smooth(1))
    as_pil(smooth(2)).resize((160, 120)).save(root / "test/b/near leak.png")
    (root / "train/a/bad.png").write_bytes(b"no image")
    (root / "train/notes.txt").write_text("")
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_every_figure_is_what_a_loop_over_the_files_says(made, workers):
    report = scan(str(made), workers=workers)
    assert json.loads(json.dumps(report)) == report
    assert list(report["splits"]) == ["train", "test"]
    for split, found in report["splits"].items():
        files = sorted(f for f in (made / split).rglob("*.*") if f.suffix != ".txt" and f.stem != "bad")
        opened = [Image.open(f) for f in files]
        pixels = [np.asarray(i.convert("RGB"), dtype=np.float64) / 255 for i in opened]
        assert found["images"] == len(files) + (split == "train")
        heights, widths = sorted(i.height for i in opened), sorted(i.width for i in opened)
        middle = (len(files) - 1) // 2
        for values, key in ((heights, "height"), (widths, "width")):
            spread = {"min": values[0], "median": values[middle], "max": values[-1]}
            assert found["sizes"][key] == spread
        area = sorted(i.height * i.width for i in opened)
        assert found["sizes"]["megapixels"]["median"] == pytest.approx(area[middle] / 1e6)
        sizes = [(i.height, i.width) for i in opened]
        assert found["sizes"]["different"] == len(set(sizes))
        assert found["sizes"]["below_32"] == sum(min(s) < 32 for s in sizes)
        for c in found["sizes"]["common"]:
            assert c["images"] == sizes.count((c["height"], c["width"]))
        counts = [c["images"] for c in found["sizes"]["common"]]
        assert counts == sorted(map(sizes.count, set(sizes)), reverse=True)[:5]
        # every image counts alike, however many pixels it has
        mean = np.mean([p.mean((0, 1)) for p in pixels], axis=0)
        square = np.mean([(p**2).mean((0, 1)) for p in pixels], axis=0)
        assert found["mean"] == pytest.approx(mean.tolist(), abs=3e-3)  # torchvision's JPEGs are not PIL's
        assert found["std"] == pytest.approx(np.sqrt(square - mean**2).tolist(), abs=3e-3)
        for key, values in (("formats", [i.format for i in opened]), ("modes", [i.mode for i in opened])):
            assert found["files"][key] == {v: values.count(v) for v in set(values)}
        assert found["files"]["transparent"] == sum(i.mode == "RGBA" for i in opened)
        assert found["classes"] == {c: sum(f.parent.name == c for f in files) for c in "ab"}
    (bad,) = report["splits"]["train"]["unreadable"]
    assert bad == {"name": "a/bad.png", "reason": "its bytes are no image of a known kind"}
    assert report["splits"]["test"]["unreadable"] == []
    assert report["notes"] == [f"left out in {made / 'train'}, as they do not end like an image: 1 .txt"]


def test_duplicates_are_found_within_and_across_splits(made):
    found = scan(str(made), workers=0)["duplicates"]
    assert found["exact"] == {
        "copies": 2,
        "groups": [
            [["train", "a/0.png"], ["train", "b/again.bmp"]],
            [["train", "a/1.png"], ["test", "b/leak.png"]],
        ],
        "groups_across": 1,
        "test_in_train": 1,
    }
    groups = sorted(found["near"]["groups"])
    assert groups == [
        [["train", "a/2.png"], ["test", "b/near leak.png"]],
        [["train", "a/smaller.jpg"], ["train", "b/5.jpg"]],
    ]
    assert (found["near"]["copies"], found["near"]["test_in_train"]) == (2, 1)
    assert (found["near"]["bits"], found["near"]["too_plain"]) == (4, 2)


def test_a_scan_of_grey_and_of_a_limit(made):
    report = scan(str(made), channels=1, limit=6, workers=0)
    train = report["splits"]["train"]
    assert train["images"] == 6
    assert len(train["mean"]) == len(train["std"]) == 1
    assert sum(train["classes"].values()) + len(train["unreadable"]) == 6
    assert report["limit"] == 6


def test_a_scan_of_what_is_in_no_file(tmp_path):
    report = scan("patterns:40x16", workers=0)
    assert report["splits"]["train"]["files"] is None
    assert set(report["splits"]["train"]["classes"].values()) == {4}
    pixels = open_source("patterns:40x16").train.in_memory().pixels.double() / 255
    assert report["splits"]["train"]["mean"] == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert report["splits"]["train"]["std"] == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())


def test_a_scan_of_a_pack_is_that_of_its_source(made, tmp_path):
    pack(str(made), tmp_path / "packed", store="pixels", workers=0)
    a, b = scan(str(made), workers=0), scan(str(tmp_path / "packed"), workers=0)
    for split in ("train", "test"):
        for key in ("sizes", "mean", "std", "classes"):
            assert a["splits"][split][key] == b["splits"][split][key]
    assert a["duplicates"] == b["duplicates"]


def test_a_folder_of_which_nothing_can_be_read(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(b"no image")
    report = scan(str(tmp_path), workers=0)
    assert len(report["splits"]["train"]["unreadable"]) == 3
    assert report["splits"]["train"]["mean"] is None
    assert report["splits"]["train"]["sizes"] is None
    main(["scan", str(tmp_path), "--workers", "0"])


def test_the_command_prints_and_writes_the_same(made, tmp_path, capsys):
    main(["scan", str(made), "--json", str(tmp_path / "scan.json"), "--workers", "0"])
    out = capsys.readouterr().out
    assert json.loads((tmp_path / "scan.json").read_text()) == scan(str(made), workers=0)
    for words in (
        r"images +│ 15 +│ 3 ", r"cannot be read +│ 1 +│ 0 ", r"formats +│ PNG 9, JPEG 4, BMP 1 ", "bad.png: its bytes",
        r"classes +│ 2 of 7 to 7 images +│ 2 of 1 to 2 images", "train/a/0.png = train/b/again.bmp",
        "equal pictures: 2 groups, 2 images more", "1 images of test are in train, too",
        "pictures alike, but for 4 of 64 bits: 2 groups", "too plain to be compared with others that are alike: 2",
    ):  # fmt: skip
        assert re.search(words, out), words


def test_scans_that_cannot_be(made, tmp_path, capsys):
    for words, sentence in (
        (["--near", "9"], "--near is 9: give from 0 to 8 bits"),
        (["--workers", "-1"], "--workers is -1"),
        (["--limit", "0"], "a limit of 0 leaves no images"),
        (["--json", str(tmp_path / "no" / "x.json")], "make its folder first"),
        (["--classes", str(tmp_path / "no")], "there is no list of classes"),
    ):
        with pytest.raises(SystemExit) as e:
            main(["scan", str(made), *words])
        assert e.value.code == 2
        assert sentence in capsys.readouterr().err


# --- near duplicates ------------------------------------------------------------------------------------


@given(st.data(), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_near_pairs_are_all_pairs_within_the_distance(data, distance, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randint(-(2**63), 2**63 - 1, (4,), generator=g)
    hashes = []
    for _ in range(data.draw(st.integers(0, 25))):
        value = int(centres[data.draw(st.integers(0, 3))])
        for bit in data.draw(st.lists(st.integers(0, 63), max_size=6)):
            value ^= near._signed(1 << bit)
        hashes.append(value)
    distinct = torch.unique(torch.tensor(hashes, dtype=torch.int64))
    far = [(int(a) ^ int(b)) & (2**64 - 1) for a, b in itertools.combinations(distinct, 2)]
    pairs = itertools.combinations(range(len(distinct)), 2)
    expected = [list(p) for p, x in zip(pairs, far, strict=True) if bin(x).count("1") <= distance]
    assert near.near_pairs(distinct, distance).tolist() == expected
    numbers = near.alike(torch.tensor(hashes, dtype=torch.int64), distance).tolist()
    joined = {i: {i} for i in range(len(hashes))}  # chains, by joining sets
    for i, j in itertools.combinations(range(len(hashes)), 2):
        if bin((hashes[i] ^ hashes[j]) & (2**64 - 1)).count("1") <= distance and joined[i] is not joined[j]:
            joined[i] |= joined[j]
            for k in joined[i]:
                joined[k] = joined[i]
    for i, j in itertools.combinations(range(len(hashes)), 2):
        assert (numbers[i] == numbers[j]) == (joined[i] is joined[j])


def test_pictures_that_a_person_calls_the_same_are_near_and_others_are_not():
    pictures = [smooth(i, 200, 260) for i in range(60)]
    hashes = torch.tensor([near.difference_hash(p) for p in pictures])
    assert near.near_pairs(hashes, 8).tolist() == []
    for p, h in zip(pictures, hashes.tolist(), strict=True):
        resized = F.interpolate(p[None], (140, 150), mode="bilinear", antialias=True)[0]
        darker = (p.float() * 0.8 + 5).to(torch.uint8)
        grey = p.float().mean(0, keepdim=True).expand(3, -1, -1)
        for other, most in ((resized, 4), (darker, 6), (p, 0), (grey.to(torch.uint8), 20)):
            assert bin((near.difference_hash(other) ^ h) & (2**64 - 1)).count("1") <= most


# --- the real world -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    root = tmp_path_factory.mktemp("odd")
    return root, *odd_folder(root)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_scan_names_every_bad_file_with_its_reason(odd, workers):
    root, good, bad = odd
    train = scan(str(root), workers=workers)["splits"]["train"]
    assert {u["name"] for u in train["unreadable"]} == set(bad)
    for u in train["unreadable"]:
        assert bad[u["name"]] in u["reason"]
        assert u["reason"]
    assert train["images"] == len(good) + len(bad)
    assert train["classes"] is None
    assert train["sizes"]["megapixels"]["max"] == 20
    assert (train["files"]["rotated"], train["files"]["animated"]) == (2, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_from_the_real_world_trains(odd, tmp_path, workers):
    root, good, bad = odd
    count = len(good) + len(bad)
    config = Config(
        source=str(root), views=3, large=32, encoder="resnet10", width=4, epochs=1, threads=1, workers=workers,
        batch_size=count // 2, device="cpu", log_every=1, look="cifar",
    )  # fmt: skip
    assert count % 2 == 0  # every file comes
    pretrain(config, tmp_path / "run", console=Console(quiet=True))
    left_out = records(tmp_path / "run", "unreadable")
    names = {str(root / name) for name in bad}
    assert {r["name"] for r in left_out} == names
    assert len(left_out) == len(bad)
    for r in left_out:
        assert bad[r["name"].rpartition("/")[2]] in r["reason"]
    assert len(records(tmp_path / "run", "epoch")) == 1


def test_a_folder_from_the_real_world_can_be_packed_and_drawn(odd, tmp_path):
    root, good, bad = odd
    report = pack(str(root), tmp_path / "packed", side=40, workers=2)
    assert {u["name"] for u in report.unreadable} == set(bad)
    images = open_source(str(tmp_path / "packed")).train
    assert {images.name(i) for i in range(len(images))} == good
    for i in range(len(images)):
        assert min(images.read(i).shape[1:]) <= 40


def failing(root, bad):
    """Photographs of which some cannot be read."""
    for i in range(12):
        save(root / f"{i:02d}.png", picture(100 + i, 110, seed=i))
    for i in bad:
        (root / f"{i:02d}.png").write_bytes(b"no image")
    return Config(
        source=str(root), views=3, large=16, encoder="resnet10", width=4, epochs=2, threads=1, batch_size=6,
        precision="fp32", device="cpu", log_every=1, max_unreadable=0.1,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_logs_what_it_leaves_out_and_stops_when_it_is_too_much(tmp_path, monkeypatch, workers):
    monkeypatch.setattr("ecpp.data.stream.FEW", 1)
    config = replace(failing(tmp_path / "few", [4]), workers=workers)
    pretrain(config, tmp_path / "run", console=Console(quiet=True))
    (record,) = records(tmp_path / "run", "unreadable")
    assert record["name"] == str(tmp_path / "few" / "04.png")
    assert record["reason"] == "its bytes are no image of a known kind"
    assert len(records(tmp_path / "run", "epoch")) == 2
    config = replace(failing(tmp_path / "many", [2, 4, 7]), workers=workers)
    with pytest.raises(ValueError, match="of 12 images cannot be read, and no more than 1 are borne") as e:
        pretrain(config, tmp_path / "stopped", console=Console(quiet=True))
    names = {r["name"] for r in records(tmp_path / "stopped", "unreadable")}
    assert len(names) >= 2  # those of the step that was one too many, too
    for name in names:
        assert f"{name}: its bytes are no image" in str(e.value)


def test_a_file_that_goes_away_after_the_folder_was_listed(tmp_path):
    images = open_source(failing(tmp_path, []).source).train
    (tmp_path / "05.png").unlink()
    results = list(each(images, lambda split, i: split.read(i).shape[1], workers=0))
    assert results[:5] == [100, 101, 102, 103, 104]
    assert str(results[5]).endswith("05.png: No such file or directory. Mend it or take it out")


@pytest.mark.slow
def test_more_than_a_hundred_thousand_files_in_one_folder(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    one = tmp_path / "one.png"
    save(one, picture(8, 8))
    for i in range(100_500):
        (folder / f"{i:06d}.png").hardlink_to(one) if i < 60_000 else (folder / f"{i:06d}.png").symlink_to(
            one
        )
    (folder / "099999.png").unlink()
    (folder / "099999.png").write_bytes(b"no image")
    images = open_source(str(folder)).train
    assert len(images) == 100_500
    assert images.name(100_000) == "100000.png"
    config = Config(
        source=str(folder), views=2, encoder="resnet10", width=1, epochs=1, threads=1, batch_size=2000, large=8,
        projector_dim=8, precision="fp32", device="cpu",
    )  # fmt: skip
    pretrain(config, tmp_path / "run", console=Console(quiet=True))
    (record,) = records(tmp_path / "run", "unreadable")
    assert record["name"].endswith("099999.png")
    report = scan(str(folder), limit=200)
    assert report["duplicates"]["exact"]["copies"] in (198, 199)


def test_names_are_shown_as_they_are(tmp_path, capsys):
    """No name is markup, and none breaks a line."""
    fill(tmp_path, "[red]a.png", "b.png")
    (tmp_path / "[bold]bad\n.png").write_bytes(b"no image")
    main(["scan", str(tmp_path), "--workers", "0"])
    out = capsys.readouterr().out
    assert "[bold]bad\\n.png: its bytes" in out
