"""A source packed into one store: the same images, names, classes and batches as the source itself."""

import errno
import io
import json
import pickle
import shutil
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
import tifffile
import torch
from pictures import as_pil, fill, picture, save
from PIL import Image
from rich.console import Console

from ecpp.cli import main
from ecpp.config import Config
from ecpp.data import Stream, Unreadable, open_source, packed
from ecpp.data import pack as packing
from ecpp.data.npy import Growing
from ecpp.data.pack import pack
from ecpp.data.writer import SplitWriter, Stored
from ecpp.run import RunFolder, pretrain
from ecpp.train import load_checkpoint
from ecpp.views import plan


def small(root, bad=()):
    """Splits and classes of small images of one size, one name in another script."""
    names = [
        f"{s}/{c}/{i}.png" for s, n in (("train", 9), ("test", 4)) for c in ("犬", "cat") for i in range(n)
    ]
    fill(root, *names)
    for name in bad:
        (root / name).write_bytes(b"no image")
    return root


def photographs(root, form="jpg"):
    """Large images of many sizes."""
    for i in range(8):
        save(root / f"{i}.{form}", picture(110 + 7 * i, 130 - 9 * i, seed=i))
    return root


def assert_same_images(a, b):
    assert len(a) == len(b)
    assert a.classes == b.classes
    assert (a.labels is None) == (b.labels is None)
    if a.labels is not None:
        assert torch.equal(a.labels, b.labels)
    for i in range(len(a)):
        assert a.name(i) == b.name(i)
        assert torch.equal(a.read(i), b.read(i))


def assert_same_batches(a, b, **options):
    views = plan(4, large=16, small=10)
    sides = [Stream(x, views, batch_size=4, seed=1, **options).batches(0, 5) for x in (a, b)]
    for x, y in zip(*sides, strict=True):
        assert torch.equal(x.samples, y.samples)
        for g, h in zip(x.groups, y.groups, strict=True):
            assert torch.equal(g, h)


# --- the same images ------------------------------------------------------------------------------------


def test_small_images_are_stored_as_pixels(tmp_path):
    source = small(tmp_path / "source")
    report = pack(str(source), tmp_path / "packed", workers=0)
    assert report.store == "pixels"
    assert report.counts == {"train": 18, "test": 8}
    assert report.unreadable == []
    assert report.bytes == sum(f.stat().st_size for f in (tmp_path / "packed").rglob("*.*"))
    a, b = open_source(str(source)), open_source(str(tmp_path / "packed"))
    assert b.notes == ()
    for x, y in ((a.train, b.train), (a.test, b.test)):
        assert_same_images(x, y)
        assert torch.equal(x.in_memory().pixels, y.in_memory().pixels)
    assert b.train.classes == ("cat", "犬")
    assert_same_batches(a.train, b.train)
    stored = np.load(tmp_path / "packed" / "train" / "pixels.npy", mmap_mode="r")  # any program can read it
    assert np.array_equal(stored[3], a.train.read(3).numpy())


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_many_sizes_keep_every_pixel(tmp_path, workers):
    source = photographs(tmp_path / "source", form="png")
    report = pack(str(source), tmp_path / "packed", store="pixels", workers=workers)
    assert report.counts == {"train": 8}
    a, b = open_source(str(source)).train, open_source(str(tmp_path / "packed")).train
    assert_same_images(a, b)
    assert b.in_memory() is None
    assert_same_batches(a, b, workers=workers)


@pytest.mark.parametrize("sizes", [
    [(9, 7)] * 3 + [(7, 9)] * 2 + [(9, 7)], [(9, 7), (5, 5)], [(9, 7)], [(5, 9), (9, 7), (9, 7)],
])  # fmt: skip
def test_pixels_of_one_size_and_then_of_another(tmp_path, sizes):
    for i, size in enumerate(sizes):
        save(tmp_path / "source" / f"{i}.png", picture(*size, seed=i))
    pack(str(tmp_path / "source"), tmp_path / "packed", workers=0)
    assert (tmp_path / "packed/train/pixels.npy").exists() == (len(set(sizes)) == 1)
    assert_same_images(
        open_source(str(tmp_path / "source")).train, open_source(str(tmp_path / "packed")).train
    )


def test_jpeg_files_are_kept_as_they_are(tmp_path):
    source = photographs(tmp_path / "source")
    report = pack(str(source), tmp_path / "packed", workers=0)
    assert report.store == "jpeg"
    a, b = open_source(str(source)).train, open_source(str(tmp_path / "packed")).train
    assert [b.encoded(i) for i in range(8)] == [a.encoded(i) for i in range(8)]
    assert_same_images(a, b)
    assert_same_batches(a, b)
    assert_same_batches(a, b, scaled=True)


def test_what_a_jpeg_cannot_show_alike_everywhere_is_written_anew(tmp_path):
    smooth = torch.zeros(3, 120, 110, dtype=torch.uint8)
    smooth[0], smooth[1] = torch.linspace(0, 250, 110), torch.linspace(0, 250, 120)[:, None]
    exif = Image.Exif()
    exif[0x0112] = 6
    root = tmp_path / "source"
    root.mkdir()
    as_pil(smooth).transpose(Image.Transpose.ROTATE_90).save(root / "a.jpg", exif=exif, quality=98)
    as_pil(smooth).convert("CMYK").save(root / "b.jpg", quality=98)
    as_pil(smooth).save(root / "c.png")
    Image.merge("RGBA", (*as_pil(smooth).split(), Image.new("L", (110, 120), 0))).save(root / "d.png")
    pack(str(root), tmp_path / "packed", quality=98, workers=0)
    a, b = open_source(str(root)).train, open_source(str(tmp_path / "packed")).train
    for i in range(4):
        with Image.open(io.BytesIO(b.encoded(i))) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.getexif().get(0x0112, 1) == 1
        assert b.read(i).shape == (3, 120, 110)
        assert (b.read(i).int() - a.read(i).int()).abs().max() <= 12
    assert b.read(3).min() > 250  # transparent, on white


@pytest.mark.parametrize("store", ["pixels", "jpeg"])
def test_the_shorter_side_is_capped(tmp_path, store):
    root = photographs(tmp_path / "source")
    save(root / "small.jpg", picture(20, 30))
    pack(str(root), tmp_path / "packed", store=store, side=64, workers=0)
    a, b = open_source(str(root)).train, open_source(str(tmp_path / "packed")).train
    for i in range(len(a)):
        before, after = a.read(i).shape[1:], b.read(i).shape[1:]
        assert min(after) == min(64, min(before))
        assert after[0] / after[1] == pytest.approx(before[0] / before[1], rel=0.02)
    assert torch.equal(b.read(8), a.read(8))  # what is small enough is not written anew


@pytest.mark.parametrize("channels", [1, 5])
def test_channels_are_kept(tmp_path, channels):
    root = tmp_path / "source"
    root.mkdir()
    for i in range(3):
        values = np.random.default_rng(i).integers(0, 255, (channels, 12, 10), dtype=np.uint8)
        if channels == 1:
            Image.fromarray(values[0]).save(root / f"{i}.png")
        else:
            tifffile.imwrite(root / f"{i}.tif", values, photometric="minisblack")
    pack(str(root), tmp_path / "packed", channels=channels, workers=0)
    a, b = (open_source(str(tmp_path / n), channels=channels).train for n in ("source", "packed"))
    assert b.channels == channels
    assert_same_images(a, b)
    with pytest.raises(
        ValueError, match=f"holds images of {channels} channels, but --channels is 3: ask for"
    ):
        open_source(str(tmp_path / "packed"))


def test_a_pack_of_grey_jpegs(tmp_path):
    root = photographs(tmp_path / "source")
    pack(str(root), tmp_path / "packed", channels=1, workers=0)
    a, b = (open_source(str(tmp_path / n), channels=1).train for n in ("source", "packed"))
    for i in range(8):
        assert (a.read(i).int() - b.read(i).int()).abs().max() <= 2


def test_classes_and_limits_of_a_pack(tmp_path):
    pack(str(small(tmp_path / "source")), tmp_path / "packed", workers=0)
    (tmp_path / "list").write_text("犬\n", encoding="utf-8")
    images = open_source(str(tmp_path / "packed"), classes=tmp_path / "list").train
    assert images.classes == ("犬",)
    assert [images.name(i) for i in range(9)] == [f"犬/{i}.png" for i in range(9)]
    report = pack(str(tmp_path / "source"), tmp_path / "few", classes=tmp_path / "list", workers=0)
    assert report.counts == {"train": 9, "test": 4}
    assert_same_images(images, open_source(str(tmp_path / "few")).train)


def test_generated_images_and_packs_can_be_packed(tmp_path):
    pack("patterns:40x16", tmp_path / "one", workers=0)
    pack(str(tmp_path / "one"), tmp_path / "two", workers=0)
    for a, b in (("patterns:40x16", "one"), ("one", "two")):
        sources = [open_source(n if ":" in n else str(tmp_path / n)) for n in (a, b)]
        assert_same_images(sources[0].train, sources[1].train)
        assert_same_images(sources[0].test, sources[1].test)


def test_bad_files_are_left_out_and_listed(tmp_path):
    source = small(tmp_path / "source", bad=("train/cat/0.png", "train/cat/4.png", "test/犬/3.png"))
    report = pack(str(source), tmp_path / "packed", workers=2)
    assert report.counts == {"train": 16, "test": 7}
    expected = [
        {"split": "train", "name": "cat/0.png", "reason": "its bytes are no image of a known kind"},
        {"split": "train", "name": "cat/4.png", "reason": "its bytes are no image of a known kind"},
        {"split": "test", "name": "犬/3.png", "reason": "its bytes are no image of a known kind"},
    ]
    assert report.unreadable == expected
    assert json.loads((tmp_path / "packed/unreadable.json").read_text(encoding="utf-8")) == expected
    splits = open_source(str(tmp_path / "packed"))
    assert splits.train.name(0) == "cat/1.png"
    assert splits.train.labels.tolist() == [0] * 7 + [1] * 9
    (note,) = splits.notes
    assert "as they cannot be read: 3 images, see unreadable.json" in note


def test_a_worker_is_sent_no_copy(tmp_path):
    pack(str(small(tmp_path / "source")), tmp_path / "packed", workers=0)
    images = open_source(str(tmp_path / "packed")).train
    assert images.labels is not None
    assert images.in_memory() is not None
    sent = pickle.dumps(images)
    assert len(sent) < 1000
    assert_same_images(pickle.loads(sent), images)


def test_a_pack_trains_bit_for_bit_like_its_source(tmp_path):
    source = small(tmp_path / "source")
    pack(str(source), tmp_path / "packed", workers=0)
    states = []
    for name in ("source", "packed"):
        config = Config(
            source=str(tmp_path / name), views=3, encoder="resnet10", width=4, batch_size=6, epochs=2,
            threads=1, large=12, precision="fp32", device="cpu",
        )  # fmt: skip
        run = pretrain(config, tmp_path / f"run {name}", console=Console(quiet=True))
        states.append(load_checkpoint(RunFolder(run.path).checkpoint)["method"])
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


# --- mistakes -------------------------------------------------------------------------------------------


def left(root):
    """What lies beside the source."""
    return sorted(f.name for f in root.iterdir() if f.name != "source")


def test_nothing_is_written_over(tmp_path):
    source = small(tmp_path / "source")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("there", "link"):
        with pytest.raises(ValueError, match=f"{name} exists already: pack into a new folder"):
            pack(str(source), tmp_path / name)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot make the folder .*: Not a directory"):
        pack(str(source), tmp_path / "file" / "packed")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        pack(str(tmp_path / "absent"), tmp_path / "packed")
    assert left(tmp_path) == ["file", "link", "there"]


@pytest.mark.parametrize(("options", "sentence"), [
    ({"store": "tar"}, "--store must be one of pixels, jpeg, but is 'tar'"),
    ({"side": 0}, "--side is 0"),
    ({"quality": 0}, "--quality is 0: JPEG knows 1 to 100"),
    ({"quality": 101}, "--quality is 101"),
    ({"store": "jpeg", "channels": 4}, "a JPEG has 1 or 3 channels, but --channels is 4"),
    ({"workers": -1}, "--workers is -1"),
])  # fmt: skip
def test_options_that_cannot_be(tmp_path, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        pack(str(small(tmp_path / "source")), tmp_path / "packed", **options)
    assert left(tmp_path) == []


def test_a_split_of_which_nothing_can_be_read(tmp_path):
    names = [f"test/{c}/{i}.png" for c in ("犬", "cat") for i in range(4)]
    source = small(tmp_path / "source", bad=names)
    with pytest.raises(
        ValueError, match=r"none of the 8 images of test in .* such as cat/0\.png: its bytes are"
    ):
        pack(str(source), tmp_path / "packed", workers=0)
    assert left(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, number):
    source, written = small(tmp_path / "source"), []
    append = Growing.append

    def full(self, data):
        written.append(data)
        if len(written) > 40:
            raise OSError(number, "No space left on device")
        append(self, data)

    monkeypatch.setattr(Growing, "append", full)
    with pytest.raises(
        OSError, match=r"no room to pack .*source into .*packed: what was written is removed again"
    ):
        pack(str(source), tmp_path / "packed", workers=0)
    assert left(tmp_path) == []


def test_a_stop_by_hand_leaves_nothing_behind(tmp_path):
    def stop(done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(str(small(tmp_path / "source")), tmp_path / "packed", workers=2, progress=stop)
    assert left(tmp_path) == []


def test_a_folder_that_a_killed_process_left(tmp_path, monkeypatch):
    monkeypatch.setattr(packing.os, "getpid", lambda: 7)
    (tmp_path / "packed.partial-7").mkdir()
    with pytest.raises(
        ValueError, match=r"packed\.partial-7 is left from a process that was killed: remove it"
    ):
        pack(str(small(tmp_path / "source")), tmp_path / "packed", workers=0)
    assert left(tmp_path) == ["packed.partial-7"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores")
    pack(str(small(root / "small")), root / "pixels", workers=0)
    pack(str(photographs(root / "large")), root / "jpeg", workers=0)
    return root


@pytest.mark.parametrize(("store", "file"), [
    ("pixels", "train/pixels.npy"), ("pixels", "train/labels.npy"), ("pixels", "test/names.npy"),
    ("jpeg", "train/bytes.npy"), ("jpeg", "train/ends.npy"), ("jpeg", "train/name_ends.npy"),
])  # fmt: skip
@pytest.mark.parametrize("damage", ["missing", "short", "words", "other"])
def test_a_damaged_pack_is_named_when_it_is_opened(tmp_path, stores, store, file, damage):
    shutil.copytree(stores / store, tmp_path / "packed")
    target = tmp_path / "packed" / file
    data = target.read_bytes()
    if damage == "missing":
        target.unlink()
    elif damage == "short":
        target.write_bytes(data[:-1])
    elif damage == "words":
        target.write_bytes(b"these are words")
    else:
        np.save(target, np.zeros(3))
    with pytest.raises(
        ValueError, match=f"the packed store is damaged at .*{file}: .*Pack its source again"
    ) as e:
        open_source(str(tmp_path / "packed"))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda a: "{", "pack.json is damaged"),
    (lambda a: "[]", "is not the one of a packed store"),
    (lambda a: json.dumps(a | {"format": "another"}), "is not the one of a packed store"),
    (lambda a: json.dumps(a | {"version": 2}), "its format is 2, but this one reads 1"),
    (lambda a: json.dumps(a | {"splits": {}}), "pack.json is damaged: KeyError at 'train'"),
    (lambda a: json.dumps(a | {"splits": {"train": 1}}), "pack.json is damaged"),
    (lambda a: json.dumps(a | {"store": "tar"}), "pack.json is damaged: ValueError at store 'tar'"),
    (lambda a: json.dumps(a | {"channels": "x"}), "pack.json is damaged"),
])  # fmt: skip
def test_a_damaged_description_is_named(tmp_path, stores, change, sentence):
    shutil.copytree(stores / "pixels", tmp_path / "packed")
    file = tmp_path / "packed" / "pack.json"
    file.write_text(change(json.loads(file.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        open_source(str(tmp_path / "packed"))


def test_a_damaged_image_within_a_pack_is_unreadable(tmp_path, stores):
    shutil.copytree(stores / "jpeg", tmp_path / "packed")
    images = open_source(str(tmp_path / "packed")).train
    start, stop = np.load(tmp_path / "packed/train/ends.npy")[2:4].tolist()
    with open(tmp_path / "packed/train/bytes.npy", "r+b") as file:
        file.seek(128 + start)
        file.write(bytes(stop - start))
    with pytest.raises(Unreadable, match=r"2\.jpg in .*packed"):
        images.read(2)
    images.read(3)


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    source = small(tmp_path / "source", bad=("train/cat/0.png",))
    main(["pack", str(source), str(tmp_path / "packed"), "--workers", "0"])
    out = capsys.readouterr().out
    assert f"{tmp_path / 'packed'}: 17 images of train and 8 images of test as pixels, 0.0 MB" in out
    assert "left out, as they cannot be read: 1\n  train/cat/0.png: its bytes are no image" in out
    with pytest.raises(SystemExit) as e:
        main(["pack", str(source), str(tmp_path / "packed")])
    assert e.value.code == 2
    assert "exists already" in capsys.readouterr().err


# --- millions -------------------------------------------------------------------------------------------


class Many:
    """Names and labels of tiny images."""

    channels, classes = 3, ("a", "b")

    def __init__(self, n):
        self.labels = torch.arange(n) % 2

    def __len__(self):
        return len(self.labels)

    def name(self, index):
        return f"class {index % 2}/image {index:09d}.png"


OPENED = """
import sys, time
from ecpp.data import open_source
import ecpp.data.pack, numpy

def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(l.split()[1]) for l in file if l.startswith(("Private_Dirty", "Anonymous"))) / 1024

before, start = private(), time.perf_counter()
images = open_source(sys.argv[1]).train
image, name = images.read(len(images) - 1), images.name(len(images) - 1)
print(time.perf_counter() - start, private() - before, int(image.sum()), name)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_million_images_open_at_once_in_flat_memory(tmp_path):
    grown = []
    for n in (1_000, 1_000_000):
        folder = tmp_path / str(n)
        (folder / "train").mkdir(parents=True)
        with ExitStack() as files:
            writer = SplitWriter(folder / "train", Many(n), "pixels", files)
            for i in range(n):
                writer.add(i, Stored(8, 8, bytes([i & 255, i >> 8 & 255]) * 96))
            about = {"train": writer.close()}
        options = {"source": "", "store": "pixels", "side": None, "quality": 95, "channels": 3}
        content = {"format": packed.FORMAT, "version": packed.VERSION, **options, "splits": about}
        (folder / "pack.json").write_text(json.dumps(content))
        done = subprocess.run(
            [sys.executable, "-c", OPENED, str(folder)], capture_output=True, text=True, check=True
        )
        _, memory, total, *name = done.stdout.split()
        last = n - 1
        assert int(total) == 96 * ((last & 255) + (last >> 8 & 255))
        assert " ".join(name) == f"class {last % 2}/image {last:09d}.png"
        grown.append(float(memory))
        assert len(pickle.dumps(open_source(str(folder)).train)) < 1000
    assert grown[1] < grown[0] + 4  # MiB
