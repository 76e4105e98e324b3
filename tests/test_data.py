import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image

from ecpp.data import Stream, generated, hub, open_source, source, subset
from ecpp.data import decode as decoding
from ecpp.data.folder import Folder
from ecpp.data.source import Decoded
from ecpp.views import ViewPlan, draw, finish, plan, render
from ecpp.views.render import crop_views, empty_crops


def picture(height=12, width=10, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=g, dtype=torch.uint8)


def as_pil(image):
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def save(file, image=None, **options):
    """One picture as a file; what it shows follows from the file's name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = picture(seed=sum(map(ord, file.name))) if image is None else image
    as_pil(image).save(file, **options)
    return image


def decode(file):
    return decoding.decode(file.read_bytes(), str(file))


def fill(root, *names):
    return {name: save(root / name) for name in names}


@dataclass
class Pictures:
    """A source made of tensors."""

    images: list
    labels: torch.Tensor | None = None
    memory: bool = True
    classes: tuple = ()
    channels: int = 3

    def __len__(self):
        return len(self.images)

    def name(self, index):
        return f"picture {index}"

    def read(self, index):
        return self.images[index]

    def in_memory(self):
        return Decoded(torch.stack(self.images), {}) if self.memory else None

    def encoded(self, index):
        return None


# --- folders --------------------------------------------------------------------------------------------


def test_a_class_is_the_folder_directly_below_the_root(tmp_path):
    images = fill(tmp_path, "b/3.png", "a/deep/er/2.png", "a/1.png", "c/c.png")
    splits = open_source(str(tmp_path))
    assert splits.test is None
    assert splits.train.classes == ("a", "b", "c")
    assert splits.train.labels.tolist() == [0, 0, 1, 2]
    assert splits.train.labels.dtype == torch.int64
    assert [splits.train.name(i) for i in range(4)] == ["a/1.png", "a/deep/er/2.png", "b/3.png", "c/c.png"]
    for i in range(len(splits.train)):
        assert torch.equal(splits.train.read(i), images[splits.train.name(i)])


@pytest.mark.parametrize("names", [
    ("2.png", "1.png"),
    ("one/2.png", "one/1.png", "one/deeper/1.png"),
    ("a/1.png", "b/2.png", "stray.png"),
], ids=["flat", "one folder", "images beside folders"])  # fmt: skip
def test_folders_that_are_no_classes_give_no_labels(tmp_path, names):
    fill(tmp_path, *names)
    images = open_source(str(tmp_path)).train
    assert images.labels is None
    assert images.classes == ()
    assert [images.name(i) for i in range(len(images))] == sorted(names)


def test_only_images_in_plain_sight_count(tmp_path):
    seen = ("a/UPPER.PNG", "a/Mixed.JpEg", "b/grün ñandú 猫.png")
    fill(tmp_path, *seen, ".hidden.png", "a/.hidden.png", ".cache/1.png", "b/.thumbs/2.png")
    (tmp_path / "README.txt").write_text("beside the folders, but no image")
    (tmp_path / "a" / "1.png.part").write_text("half")
    images = open_source(str(tmp_path)).train
    assert {images.name(i) for i in range(len(images))} == set(seen)
    assert images.classes == ("a", "b")
    assert torch.equal(images.read(2), picture(seed=sum(map(ord, "grün ñandú 猫.png"))))


def test_files_that_are_left_out_are_counted(tmp_path):
    fill(tmp_path, "train/1.png", "test/2.png")
    assert open_source(str(tmp_path)).notes == ()
    for name in ("a.txt", "deep/b.TXT", "c.heic", "LICENSE", ".hidden.txt"):
        (tmp_path / "train" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_text("no image")
    (note,) = open_source(str(tmp_path)).notes
    assert note.startswith(f"left out in {tmp_path / 'train'}")
    for part in ("2 .txt", "1 .heic", "1 without ending"):
        assert part in note


def test_links_to_folders_are_followed_and_loops_are_not(tmp_path):
    fill(tmp_path / "elsewhere", "1.png", "2.png")
    fill(tmp_path / "data", "b/3.png")
    (tmp_path / "data" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "b" / "loop").symlink_to(tmp_path / "data")
    images = open_source(str(tmp_path / "data")).train
    assert [images.name(i) for i in range(len(images))] == ["a/1.png", "a/2.png", "b/3.png"]
    assert images.labels.tolist() == [0, 0, 1]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    fill(tmp_path, "a/1.png", "locked/2.png")
    scandir = os.scandir

    def refuse(path):
        if os.fsencode(path).endswith(b"locked"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=r"cannot look into the folder .*locked: Permission denied"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("held_out", ["test", "val", "valid", "validation"])
def test_train_beside_a_held_out_folder_is_a_split(tmp_path, held_out):
    fill(
        tmp_path,
        "train/a/1.png",
        "train/b/2.png",
        "train/b/3.png",
        f"{held_out}/a/4.png",
        f"{held_out}/b/5.png",
    )
    splits = open_source(str(tmp_path))
    assert splits.train.labels.tolist() == [0, 1, 1]
    assert splits.test.labels.tolist() == [0, 1]
    assert splits.train.classes == splits.test.classes == ("a", "b")
    assert splits.test.name(1) == "b/5.png"
    assert torch.equal(splits.test.read(1), picture(seed=sum(map(ord, "5.png"))))


def test_test_comes_before_val_and_alone_splits_nothing(tmp_path):
    fill(tmp_path, "train/1.png", "val/2.png", "test/3.png")
    assert open_source(str(tmp_path)).test.name(0) == "3.png"
    fill(tmp_path / "other", "test/1.png", "holidays/2.png")
    splits = open_source(str(tmp_path / "other"))
    assert splits.test is None
    assert splits.train.classes == ("holidays", "test")


@pytest.mark.parametrize("names", [
    ("train/a/1.png", "train/b/2.png", "test/a/3.png", "test/odd/4.png"),
    ("train/a/1.png", "train/odd/2.png", "test/3.png"),
    ("train/a/1.png", "train/b/2.png", "train/odd/2.png", "test/a/3.png", "test/b/4.png"),
])  # fmt: skip
def test_splits_must_hold_the_same_classes(tmp_path, names):
    fill(tmp_path, *names)
    with pytest.raises(ValueError, match=r"different classes, such as .*odd.*: both must hold"):
        open_source(str(tmp_path))


def test_what_is_no_folder_of_images_is_named(tmp_path):
    file = tmp_path / "one.png"
    save(file)
    with pytest.raises(ValueError, match=r"one\.png is a file"):
        open_source(str(file))
    with pytest.raises(
        FileNotFoundError, match=r"no folder .*missing.*patterns, torchvision:NAME or hf:NAME"
    ):
        open_source(str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"no images below .*empty.*\.png"):
        open_source(str(tmp_path / "empty"))
    fill(tmp_path / "half", "train/1.png")
    (tmp_path / "half" / "test").mkdir()
    with pytest.raises(ValueError, match=r"no images below .*half/test"):
        open_source(str(tmp_path / "half"))


def test_the_home_folder_may_be_abbreviated(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(tmp_path, "photos/1.png")
    assert len(open_source("~/photos").train) == 1


@pytest.mark.parametrize("damage", [
    lambda data: b"",
    lambda data: b"these are words",
    lambda data: data[: len(data) // 2],
    lambda data: data[:40] + bytes(20) + data[60:],
], ids=["empty", "words", "cut short", "zeros inside"])  # fmt: skip
def test_a_broken_image_is_named(tmp_path, damage):
    fill(tmp_path, "1.png", "2.png", "3.png")
    broken = tmp_path / "2.png"
    broken.write_bytes(damage(broken.read_bytes()))
    images = open_source(str(tmp_path)).train
    with pytest.raises(ValueError, match=r"cannot read the image .*2\.png"):
        images.read(1)
    decoded = images.in_memory()
    assert list(decoded.unreadable) == [1]
    assert decoded.unreadable[1].name.endswith("2.png")
    assert torch.equal(decoded.pixels[2], images.read(2))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_every_colour_mode_becomes_rgb(tmp_path, mode):
    rgb = as_pil(picture(9, 7))
    image = rgb.quantize(256) if mode == "P" else rgb.convert(mode)
    file = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    image.save(file)
    got = decode(file)
    assert got.shape == (3, 9, 7)
    assert got.dtype == torch.uint8
    if mode in ("RGBA", "P", "CMYK"):
        assert (got.int() - picture(9, 7)).abs().max() <= (0 if mode != "P" else 60)
    else:
        assert torch.equal(got, got[:1].expand(3, -1, -1))
        assert np.array_equal(got[0].numpy(), np.asarray(image.convert("L")))


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.pgm"])
def test_sixteen_bits_of_grey_keep_their_range(tmp_path, name):
    values = torch.linspace(0, 65535, 100).round().to(torch.int32).view(10, 10)
    Image.fromarray(values.numpy().astype(np.uint16)).save(tmp_path / name)
    expected = (values / 257).round().to(torch.uint8)
    assert torch.equal(decode(tmp_path / name), expected.expand(3, 10, 10))


@pytest.mark.parametrize(
    ("orientation", "stored"),
    [(2, "FLIP_LEFT_RIGHT"), (3, "ROTATE_180"), (6, "ROTATE_90"), (8, "ROTATE_270")],
)
def test_a_photograph_is_upright(tmp_path, orientation, stored):
    upright = torch.zeros(3, 16, 24, dtype=torch.uint8)
    upright[0] = torch.linspace(0, 250, 24)
    upright[1] = torch.linspace(0, 250, 16)[:, None]
    exif = Image.Exif()
    exif[0x0112] = orientation
    sideways = as_pil(upright).transpose(Image.Transpose[stored])
    sideways.save(tmp_path / "x.jpg", exif=exif, quality=98, subsampling=0)
    got = decode(tmp_path / "x.jpg")
    assert got.shape == (3, 16, 24)
    assert (got.int() - upright.int()).abs().max() < 12


# --- memory or files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "fits"), [
    ([(12, 10)] * 3, True),
    ([(96, 96)] * 2, True),
    ([(97, 96)] * 2, False),
    ([(96, 97)] * 2, False),
    ([(12, 10), (12, 10), (10, 12)], False),
    ([(12, 10), (13, 10)], False),
])  # fmt: skip
def test_small_images_of_one_size_lie_in_memory(tmp_path, sizes, fits):
    images = [save(tmp_path / f"{i}.png", picture(*size, seed=i)) for i, size in enumerate(sizes)]
    got = open_source(str(tmp_path)).train.in_memory()
    if fits:
        assert got.pixels.dtype == torch.uint8
        assert torch.equal(got.pixels, torch.stack(images))
    else:
        assert got is None


def test_no_more_lies_in_memory_than_may(tmp_path, monkeypatch):
    fill(tmp_path, "1.png", "2.png")
    monkeypatch.setattr(source, "IN_MEMORY_BYTES", 2 * 3 * 12 * 10 - 1)
    assert open_source(str(tmp_path)).train.in_memory() is None
    monkeypatch.setattr(source, "IN_MEMORY_BYTES", 2 * 3 * 12 * 10)
    assert open_source(str(tmp_path)).train.in_memory() is not None


def test_many_images_keep_their_order_in_memory():
    images = [picture(4, 4, seed=i) for i in range(600)]
    assert torch.equal(source.decode_all(Pictures(images)).pixels, torch.stack(images))
    images[590] = picture(4, 5)
    assert source.decode_all(Pictures(images)) is None


def test_images_are_decoded_once_for_all_that_read_them(tmp_path):
    fill(tmp_path, "1.png", "2.png")
    images = open_source(str(tmp_path)).train
    assert images.in_memory() is images.in_memory()


# --- a limit --------------------------------------------------------------------------------------------


def uneven(counts, seed=0):
    """Labels in blocks, as class folders give them."""
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    return Pictures([picture(4, 4, seed=i) for i in range(len(labels))], labels, classes=tuple("abc"))


@pytest.mark.parametrize(("limit", "counts"), [
    (3, [1, 1, 1]), (15, [5, 5, 5]), (30, [13, 12, 5]), (84, [50, 29, 5]),
])  # fmt: skip
def test_a_limit_takes_every_class_alike(limit, counts):
    whole = uneven([50, 30, 5])
    for seed in range(5):
        part = subset(whole, limit, seed)
        assert len(part) == limit
        got = torch.bincount(part.labels, minlength=3)
        # Where a turn is cut off, the seed says who still gets one.
        assert (got - torch.tensor(counts)).abs().max() <= 1
        assert got[2] == counts[2]
        assert part.classes == whole.classes


def test_a_subset_is_random_by_seed_and_in_order():
    for whole in (uneven([50, 30, 20]), Pictures(uneven([100]).images)):
        parts = [subset(whole, 40, seed).indices for seed in range(100)]
        assert torch.equal(parts[3], subset(whole, 40, 3).indices)
        assert len({tuple(p.tolist()) for p in parts}) == 100
        for part in parts:
            assert torch.equal(part, part.unique())
        taken = torch.bincount(torch.cat(parts), minlength=100).double() / 100
        if whole.labels is None:
            expected = torch.full((100,), 0.4)
        else:  # 40 by turns: 13 or 14 of each class
            expected = (40 / 3 / torch.tensor([50.0, 30.0, 20.0]))[whole.labels]
        spread = ((taken - expected) / (expected * (1 - expected) / 100).sqrt()).abs()
        assert spread.max() < 4.5  # no image is favoured: neither the first ones nor any other


def test_a_subset_shows_what_the_whole_shows():
    whole = uneven([20, 20, 20])
    part = subset(whole, 9, seed=1)
    assert torch.equal(part.labels, whole.labels[part.indices])
    assert torch.equal(part.in_memory().pixels, torch.stack(whole.images)[part.indices])
    for i, j in enumerate(part.indices.tolist()):
        assert part.name(i) == whole.name(j)
        assert torch.equal(part.read(i), whole.read(j))
    again = subset(part, 3, seed=0)
    assert torch.equal(again.read(2), whole.read(int(part.indices[again.indices[2]])))


def test_a_subset_of_decoded_images_is_not_decoded_again(tmp_path):
    images = fill(tmp_path, *(f"{i}.png" for i in range(6)))
    whole = open_source(str(tmp_path)).train
    whole.in_memory()
    part = subset(whole, 3, seed=0)
    for file in tmp_path.iterdir():
        file.unlink()
    expected = torch.stack([images[part.name(i)] for i in range(3)])
    assert torch.equal(part.in_memory().pixels, expected)


def test_limits_at_the_edge():
    whole = uneven([2, 2, 2])
    for limit in (None, 6, 7, 10**9):
        assert subset(whole, limit, seed=0) is whole
    for limit in (0, -3):
        with pytest.raises(ValueError, match=f"a limit of {limit} leaves no images"):
            subset(whole, limit, seed=0)


# --- patterns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n", "size"), [
    ("patterns", 10_000, 32), ("patterns:40", 40, 32), ("patterns:100x16", 100, 16), ("patterns:x8", 10_000, 8),
])  # fmt: skip
def test_patterns_come_in_any_number_and_size(name, n, size):
    splits = open_source(name)
    assert len(splits.train) == n
    assert len(splits.test) == max(10, n // 5)
    for images in (splits.train, splits.test):
        assert images.read(0).shape == (3, size, size)
        assert len(images.classes) == 10
        assert set(torch.bincount(images.labels).tolist()) == {len(images) // 10}


def test_patterns_are_the_same_one_by_one_and_differ_between_the_splits():
    train, test = open_source("patterns:30x16").train, open_source("patterns:30x16").test
    pixels = train.in_memory().pixels
    assert torch.equal(pixels, torch.stack([train.read(i) for i in range(30)]))
    together = torch.cat([pixels, test.in_memory().pixels]).flatten(1)
    assert len(together.unique(dim=0)) == 40
    assert len({images.name(i) for images in (train, test) for i in range(10)}) == 20


def test_large_patterns_are_not_kept_in_memory(monkeypatch):
    assert open_source("patterns:10x97").train.in_memory() is None
    monkeypatch.setattr(generated, "IN_MEMORY_BYTES", 10 * 3 * 16 * 16 - 1)
    assert open_source("patterns:10x16").train.in_memory() is None


@pytest.mark.parametrize("options", ["ten", "10.5", "100x16x3", "100X16", "9", "0", "-20", "100x7", "100x-8"])
def test_impossible_patterns_are_refused(options):
    with pytest.raises(ValueError, match=f"patterns:{options}"):
        open_source(f"patterns:{options}")


# --- torchvision ----------------------------------------------------------------------------------------


class Toy:
    """What torchvision's data sets have in common; subclasses differ in how they are split."""

    mode = "RGB"

    def fill(self, n, offset):
        self.data = [as_pil(picture(8, 8, seed=offset + i)).convert(self.mode) for i in range(n)]
        self.numbers = [i % 3 for i in range(n)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], self.numbers[index]


class ByTrain(Toy):
    def __init__(self, root, train=True, transform=None, download=False):
        assert Path(root).name == "ByTrain"
        assert download
        self.fill(6 if train else 4, 0 if train else 100)
        self.targets, self.classes = self.numbers, ["red", "green", "blue"]


class BySplit(Toy):
    mode = "L"

    def __init__(self, root, split="train", download=False):
        assert split in ("train", "test")
        assert download
        self.fill(6 if split == "train" else 4, 0 if split == "train" else 100)
        self.labels = np.array(self.numbers)


class Whole(Toy):
    def __init__(self, root):
        self.fill(5, 0)


class Unreachable(Toy):
    def __init__(self, root, train=True, download=False):
        raise RuntimeError("no route to host")


@pytest.fixture
def toys(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "CACHE", tmp_path)
    for kind in (ByTrain, BySplit, Whole, Unreachable):
        monkeypatch.setattr(torchvision.datasets, kind.__name__, kind, raising=False)


def test_torchvision_data_are_split_by_their_own_argument(toys):
    for name, classes in (("ByTrain", ("red", "green", "blue")), ("BySplit", ("0", "1", "2"))):
        splits = open_source(f"torchvision:{name}")
        assert (len(splits.train), len(splits.test)) == (6, 4)
        assert splits.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
        assert splits.test.labels.tolist() == [0, 1, 2, 0]
        assert splits.train.labels.dtype == torch.int64
        assert splits.train.classes == splits.test.classes == classes
        assert splits.train.name(2) == f"{name} 2"
        assert splits.train.read(1).shape == (3, 8, 8)
        assert torch.equal(splits.test.in_memory().pixels[3], splits.test.read(3))
    colour = open_source("torchvision:ByTrain")
    assert torch.equal(colour.train.read(1), picture(8, 8, seed=1))
    assert torch.equal(colour.test.read(1), picture(8, 8, seed=101))
    grey = open_source("torchvision:BySplit").train.read(1)
    assert torch.equal(grey, grey[:1].expand(3, -1, -1))


def test_torchvision_data_without_splits_or_labels_are_all_for_training(toys):
    splits = open_source("torchvision:Whole")
    assert splits.test is None
    assert len(splits.train) == 5
    assert splits.train.labels is None
    assert splits.train.classes == ()


def test_torchvisions_fake_data_can_be_opened():
    splits = open_source("torchvision:FakeData")
    assert splits.test is None
    assert len(splits.train) == 1000
    assert splits.train.read(3).shape == (3, 224, 224)
    assert splits.train.in_memory() is None


def test_a_torchvision_name_that_leads_nowhere_is_named(toys):
    with pytest.raises(ValueError, match=r"no data set 'CIFAR11'; near: .*CIFAR10, CIFAR100"):
        open_source("torchvision:CIFAR11")
    for name in ("cifar", "Zzz"):  # the first is a module of torchvision.datasets
        with pytest.raises(ValueError, match=f"no data set '{name}'"):
            open_source(f"torchvision:{name}")
    with pytest.raises(ValueError, match="could not open Unreachable: no route to host"):
        open_source("torchvision:Unreachable")
    with pytest.raises(FileNotFoundError, match="torchvision:NAME"):
        open_source("torchvision:")


# --- the stream -----------------------------------------------------------------------------------------

PLAN = plan(4, large=16, small=10)
N = 23


def small_images(memory):
    return Pictures([picture(20, 24, seed=i) for i in range(N)], memory=memory)


def large_images():
    return Pictures([picture(20 + i % 3, 24 + i % 5, seed=i) for i in range(N)], memory=False)


def stream(images=None, *, batch_size=5, seed=0, **options):
    return Stream(images or small_images(True), PLAN, batch_size=batch_size, seed=seed, **options)


def assert_same_batches(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a.samples, b.samples)
        assert a.order == b.order
        for x, y in zip(a.groups, b.groups, strict=True):
            assert torch.equal(x, y)


def test_every_epoch_is_another_order_of_all_images():
    s = stream()
    assert s.steps_per_epoch == 4
    epochs = [torch.cat([s.samples(4 * e + i) for i in range(4)]) for e in range(40)]
    for order in epochs:
        assert len(order.unique()) == 20  # what fills no batch is left out: 23 images, 4 batches of 5
        assert order.min() >= 0
        assert order.max() < N
    assert len({tuple(order.tolist()) for order in epochs}) == 40
    assert len(torch.cat(epochs).unique()) == N  # and comes in another epoch
    assert stream(batch_size=N).samples(7).sort().values.tolist() == list(range(N))
    s = stream(batch_size=N)
    places = torch.stack([s.samples(e) for e in range(400)])  # (epochs, places): which image
    assert (places.double().mean(dim=0) - (N - 1) / 2).abs().max() < 5 * 6.64 / 20  # sd 6.64 of 400 draws


def test_the_order_follows_the_seed_alone():
    torch.manual_seed(0)
    one = torch.stack([stream(seed=3).samples(i) for i in range(8)])
    torch.manual_seed(1)
    s = stream(seed=3)
    assert torch.equal(one, torch.stack([s.samples(i) for i in reversed(range(8))]).flip(0))
    assert not torch.equal(one, torch.stack([stream(seed=4).samples(i) for i in range(8)]))


def test_the_order_of_an_epoch_says_nothing_about_its_views():
    n = 300
    samples = stream(Pictures([picture(2, 2)] * n), batch_size=n).samples(2)
    params = draw(PLAN, samples, torch.tensor([[200, 200]] * n), seed=0, epoch=2)
    area = params.boxes[..., 2:].prod(dim=-1)  # (K, N), in the order of the epoch
    together = torch.stack([torch.arange(n), *area, *params.boxes[..., 0], *params.boxes[..., 1]]).double()
    assert torch.corrcoef(together)[0, 1:].abs().max() < 4 / n**0.5


@pytest.mark.parametrize("make", [lambda: small_images(True), large_images], ids=["memory", "files"])
def test_a_stream_may_start_anywhere(make):
    whole = list(stream(make()).batches(0, 10))
    assert [len(b.samples) for b in whole] == [5] * 10
    for start, stop in ((1, 3), (3, 5), (6, 10), (8, 8)):  # an epoch ends after step 3 and after step 7
        assert_same_batches(list(stream(make()).batches(start, stop)), whole[start:stop])
    again = stream(make())
    list(again.batches(5, 7))
    assert_same_batches(list(again.batches(0, 10)), whole)


def test_views_change_from_epoch_to_epoch_and_with_the_seed():
    s = stream(batch_size=N)
    first, second = (next(s.batches(e, e + 1)) for e in (0, 1))
    other = next(stream(batch_size=N, seed=1).batches(0, 1))
    a, b, c = (batch.view(3)[batch.samples.argsort()] for batch in (first, second, other))
    for x, y in ((a, b), (a, c), (b, c)):
        assert ((x - y).abs().amax(dim=(1, 2, 3)) > 0.01).float().mean() > 0.9


def test_a_batch_in_memory_is_what_render_gives():
    s = stream(seed=2)
    for step, batch in enumerate(s.batches(0, 6)):
        images = torch.stack([s.images.read(i) for i in batch.samples.tolist()])
        sizes = torch.tensor([[20, 24]] * 5)
        params = draw(PLAN, batch.samples, sizes, seed=2, epoch=step // 4)
        assert torch.equal(batch.samples, s.samples(step))
        assert_same_batches([batch], [render(PLAN, images, batch.samples, params)])


def test_a_batch_of_files_is_what_its_crops_give_with_any_number_of_workers():
    s = stream(large_images(), seed=2)
    assert s.pixels is None
    batches = list(s.batches(1, 6))
    for step, batch in enumerate(batches, start=1):
        images = [s.images.read(i) for i in s.samples(step).tolist()]
        crops = []
        for image, sample in zip(images, batch.samples, strict=True):
            size = torch.tensor(image.shape[1:])
            params = draw(PLAN, sample[None], size[None], seed=2, epoch=step // s.steps_per_epoch)
            mine = [c[:, 0] for c in empty_crops(PLAN, 1)]
            crop_views(PLAN, image, size, params.boxes[:, 0], params.flip[:, 0], mine)
            crops.append(mine)
        together = [torch.stack(group, dim=1) for group in zip(*crops, strict=True)]
        sizes = torch.tensor([tuple(image.shape[1:]) for image in images])
        params = draw(PLAN, batch.samples, sizes, seed=2, epoch=step // s.steps_per_epoch)
        assert_same_batches([batch], [finish(PLAN, together, s.samples(step), params)])
    state = torch.get_rng_state()
    assert_same_batches(list(stream(large_images(), seed=2, workers=2).batches(1, 6)), batches)
    assert torch.equal(torch.get_rng_state(), state)


def test_memory_and_files_show_the_same_views():
    crops = ViewPlan(PLAN.views, mean=(0.0,) * 3, std=(1.0,) * 3)
    sides = [
        Stream(small_images(memory), crops, batch_size=5, seed=0).batches(0, 4) for memory in (True, False)
    ]
    for a, b in zip(*sides, strict=True):
        assert torch.equal(a.samples, b.samples)
        for k in (2, 3):  # crop-only: no colour to magnify the rounding of a file's crops
            assert (a.view(k) - b.view(k)).abs().max() < 1.5 / 255


@pytest.mark.parametrize("make", [lambda: small_images(True), large_images], ids=["memory", "files"])
def test_a_stream_leaves_the_global_random_numbers_alone(make):
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()
    list(stream(make()).batches(0, 5))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], legacy)


def test_batches_that_cannot_be_are_refused():
    for size in (1, 0):
        with pytest.raises(ValueError, match=f"a batch of {size} holds no negatives"):
            stream(batch_size=size)
    with pytest.raises(ValueError, match="a batch of 24 is larger than the 23 images"):
        stream(batch_size=24)
    assert stream(batch_size=23).steps_per_epoch == 1


def broken_folder(root, bad=(2,), count=6):
    for i in range(count):
        save(root / f"{i}.png", picture(20 + i, 20))
    for i in bad:
        (root / f"{i}.png").write_bytes(b"no image")
    return Folder(root)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_left_out_of_its_batch_and_named_once(tmp_path, workers):
    images, told = broken_folder(tmp_path), []
    s = Stream(images, PLAN, batch_size=3, seed=0, workers=workers, report=told.append)
    expected = list(Stream(images, PLAN, batch_size=3, seed=0).batches(0, 4))
    for step, batch in enumerate(s.batches(0, 4)):
        whole = s.samples(step).tolist()
        assert batch.samples.tolist() == [i for i in whole if i != 2]
        assert [len(g) for g in batch.groups] == [2 * batch.n, 2 * batch.n]
        assert_same_batches([batch], [expected[step]])
    assert [e.name for e in told] == [str(tmp_path / "2.png")]
    assert "\n" not in str(told[0])


def test_too_many_broken_files_end_the_stream_with_their_list(tmp_path, monkeypatch):
    monkeypatch.setattr("ecpp.data.stream.FEW", 1)
    images = broken_folder(tmp_path, bad=(1, 2, 4), count=12)
    s = Stream(images, PLAN, batch_size=12, seed=0, max_unreadable=0.2)
    with pytest.raises(ValueError, match="3 of 12 images cannot be read, and no more than 2") as e:
        list(s.batches(0, 1))
    for i in (1, 2, 4):
        assert f"{i}.png" in str(e.value)
    assert len(list(Stream(images, PLAN, batch_size=12, seed=0, max_unreadable=0.3).batches(0, 1))) == 1
    nothing = broken_folder(tmp_path / "all", bad=(0, 1), count=2)
    with pytest.raises(ValueError, match="of a batch of 2 images 0 could be read"):
        list(Stream(nothing, PLAN, batch_size=2, seed=0, max_unreadable=1.0).batches(0, 1))


def test_broken_files_of_small_images_never_come(tmp_path):
    fill(tmp_path, *(f"{i}.png" for i in range(7)))
    (tmp_path / "3.png").write_bytes(b"no image")
    told = []
    s = Stream(Folder(tmp_path), PLAN, batch_size=3, seed=0, report=told.append)
    assert s.steps_per_epoch == 2
    assert [e.name for e in told] == [str(tmp_path / "3.png")]
    seen = torch.cat([b.samples for b in s.batches(0, 20)])
    assert sorted(set(seen.tolist())) == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("make", [lambda: small_images(True), large_images], ids=["memory", "files"])
def test_ranks_share_a_batch(make):
    whole = list(stream(make(), batch_size=6).batches(0, 4))
    shares = [list(stream(make(), batch_size=6, rank=r, world=2).batches(0, 4)) for r in range(2)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert torch.equal(batch.samples, torch.cat([p.samples for p in parts]))
        for k in range(PLAN.k):
            # the products over half a batch may round the last bit otherwise
            assert torch.allclose(batch.view(k), torch.cat([p.view(k) for p in parts]), atol=1e-5)
    with pytest.raises(ValueError, match="a batch of 5 cannot be shared by 2 ranks"):
        stream(make(), batch_size=5, world=2)


def test_what_fails_on_one_rank_is_left_out_at_its_place_on_all(tmp_path):
    images = broken_folder(tmp_path, bad=())
    failed = torch.tensor([False, True, False])
    s = Stream(images, PLAN, batch_size=6, seed=0, world=2, agree=lambda mine: mine | failed)
    (batch,) = s.batches(0, 1)
    assert batch.samples.tolist() == s.samples(0)[[0, 2]].tolist()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_started_in_any_way_give_the_same_views(tmp_path, method):
    images = broken_folder(tmp_path, bad=())
    alone = list(Stream(images, PLAN, batch_size=3, seed=0).batches(0, 4))
    s = Stream(images, PLAN, batch_size=3, seed=0, workers=2, start_method=method)
    assert_same_batches(list(s.batches(0, 4)), alone)
