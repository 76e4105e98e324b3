import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets
from pictures import Pictures, as_pil, fill, picture, save

from ecpp.data import Unreadable, generated, hub, open_source, source, subset

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


def test_links_that_lead_to_themselves_or_nowhere_are_files_that_cannot_be_read(tmp_path):
    fill(tmp_path, "a.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere.png").symlink_to("absent.png")
    images = open_source(str(tmp_path)).train
    assert [images.name(i) for i in range(len(images))] == ["a.png", "loop.png", "nowhere.png"]
    for i, reason in ((1, "Too many levels"), (2, "No such file")):
        with pytest.raises(Unreadable, match=reason):
            images.read(i)


def test_a_second_held_out_split_is_left_out_and_named(tmp_path):
    fill(tmp_path, "train/1.png", "val/2.png", "test/3.png")
    assert open_source(str(tmp_path)).notes == (f"left out in {tmp_path}: its splits val",)


# --- labels.csv -----------------------------------------------------------------------------------------


def table(root, text, encoding="utf-8"):
    (root / "labels.csv").write_bytes(text.encode(encoding))
    return open_source(str(root))


def test_a_table_names_images_classes_and_splits(tmp_path):
    fill(tmp_path, "b/1.png", "a/2.png", "3.png", "\u732b, two.png", "not named.png")
    lines = [
        "\ufeffLabel, Path ,note,split",
        "dog,b/1.png,x,train",
        "cat,./a/2.png,,",
        'dog,"\u732b, two.png",x,Test',
        "cat,3.png,x,test",
    ]
    splits = table(tmp_path, "\r\n".join(lines).replace(" Path ", "Path"))
    train, test = splits.train, splits.test
    assert [train.name(i) for i in range(2)] == ["a/2.png", "b/1.png"]
    assert [test.name(i) for i in range(2)] == ["3.png", "\u732b, two.png"]
    assert train.classes == test.classes == ("cat", "dog")
    assert train.labels.tolist() == test.labels.tolist() == [0, 1]
    assert torch.equal(train.read(1), picture(seed=sum(map(ord, "1.png"))))
    assert splits.notes == (f"left out in {tmp_path}, as labels.csv does not name them: 1 images",)


def test_a_table_without_splits_and_one_with_several(tmp_path):
    fill(tmp_path, "1.png", "2.png", "3.png")
    splits = table(tmp_path, "file,class\n1.png,x\n\n2.png,x\n3.png,x\n")
    assert splits.test is None
    assert splits.train.labels.tolist() == [0, 0, 0]
    splits = table(tmp_path, "file,class,split\n1.png,x,train\n2.png,x,val\n3.png,x,test\n")
    assert [splits.test.name(i) for i in range(len(splits.test))] == ["3.png"]
    assert splits.notes == (f"left out in {tmp_path}: its splits val",)


@pytest.mark.parametrize(("text", "sentence"), [
    ("image;label\n1.png;x\n", "must name a column for the file .* it names image;label"),
    ("", "it names none"),
    ("file,label\n", "names no images"),
    ("file,label\n1.png\n", "line 2 of .* lacks its file or its class"),
    ("file,label\n\n1.png,x\n,y\n", "line 4 of .* lacks its file or its class"),
    ("file,label\n1.png,x\n1.png,y\n", "names 1.png more than once"),
    ("file,label\nabsent.png,x\n", "names 1 images that are not there, such as absent.png"),
    ("file,label\n../1.png,x\n", "not there, such as ../1.png"),
    ("file,label\nnotes.txt,x\n", "names notes.txt, which is hidden or does not end like an image"),
    ("file,label,split\n1.png,x,tset\n", "line 2 of .* names the split 'tset': use one of train, test, val"),
    ("file,label,split\n1.png,x,test\n", "no images to train on: each is in a split of test"),
    ("file,label,split\n1.png,x,\n2.png,y,test\n", "different classes, such as x, y"),
])  # fmt: skip
def test_tables_with_mistakes(tmp_path, text, sentence):
    fill(tmp_path, "1.png", "2.png")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=sentence):
        table(tmp_path, text)


def test_a_table_in_another_encoding(tmp_path):
    fill(tmp_path, "1.png")
    with pytest.raises(ValueError, match="no table of comma-separated values in UTF-8"):
        table(tmp_path, "file,label\n1.png,Bär\n", encoding="latin-1")


# --- lists of classes -----------------------------------------------------------------------------------


def listed(root, text):
    file = root.parent / "classes.txt"
    file.write_text("\ufeff" + text, encoding="utf-8")
    return open_source(str(root), classes=file)


def test_a_list_of_classes_takes_those_alone(tmp_path):
    root = tmp_path / "data"
    names = [
        f"{s}/{c}/{s}{c}{i}.png" for s in ("train", "test") for c in ("ox", "a b", "n01") for i in range(2)
    ]
    fill(root, *names)
    splits = listed(root, "# a comment\n\nn01 goldfish, Carassius\n  a b\n")
    for side, images in (("train", splits.train), ("test", splits.test)):
        assert images.classes == ("a b", "n01")
        assert images.labels.tolist() == [0, 0, 1, 1]
        assert [images.name(i) for i in (0, 3)] == [f"a b/{side}a b0.png", f"n01/{side}n011.png"]
        assert torch.equal(images.read(3), picture(seed=sum(map(ord, f"{side}n011.png"))))
        assert images.encoded(3) == (root / side / "n01" / f"{side}n011.png").read_bytes()
    assert torch.equal(splits.train.in_memory().pixels[2], splits.train.read(2))
    few = subset(splits.train, 2, seed=0)
    assert few.labels.tolist() == [0, 1]


@pytest.mark.parametrize(("text", "sentence"), [
    ("a\nc\nd\n", "2 of the 3 classes in .*classes.txt are not among the 2 of the source, such as 'c'; it has a, b"),
    ("\n# nothing\n", "names no class"),
])  # fmt: skip
def test_lists_with_mistakes(tmp_path, text, sentence):
    fill(tmp_path / "data", "a/1.png", "b/2.png")
    with pytest.raises(ValueError, match=sentence):
        listed(tmp_path / "data", text)


def test_a_list_that_is_absent_or_of_no_use(tmp_path):
    fill(tmp_path / "data", "1.png", "2.png")
    with pytest.raises(FileNotFoundError, match=r"there is no list of classes .*absent\.txt"):
        open_source(str(tmp_path / "data"), classes=tmp_path / "absent.txt")
    with pytest.raises(ValueError, match="lists classes, but the images have none"):
        listed(tmp_path / "data", "a\n")
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is no list of classes: it should be text in UTF-8"):
        open_source(str(tmp_path / "data"), classes=tmp_path / "classes.txt")


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


class ByVal(BySplit):
    def __init__(self, root, split="train", download=False):
        if split not in ("train", "val"):
            raise ValueError(f"Unknown value {split!r} for argument split")
        self.fill(6 if split == "train" else 4, 0)


class Broken(Toy):
    def __init__(self, root):
        self.fill(3, 0)

    def __getitem__(self, index):
        if index == 1:
            raise OSError("image file is truncated")
        return (self.data[0], 0) if index == 0 else (torch.zeros(3, 8, 8), 0)


class Whole(Toy):
    def __init__(self, root):
        self.fill(5, 0)


class Unreachable(Toy):
    def __init__(self, root, train=True, download=False):
        raise RuntimeError("no route to host")


@pytest.fixture
def toys(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "CACHE", tmp_path)
    for kind in (ByTrain, BySplit, ByVal, Broken, Whole, Unreachable):
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


def test_torchvision_data_may_hold_out_val(toys):
    splits = open_source("torchvision:ByVal")
    assert (len(splits.train), len(splits.test)) == (6, 4)
    assert splits.train.labels is None


def test_what_torchvision_cannot_read_or_is_no_image_is_named(toys):
    images = open_source("torchvision:Broken").train
    assert torch.equal(images.read(0), picture(8, 8, seed=0))
    with pytest.raises(Unreadable, match="Broken 1: image file is truncated"):
        images.read(1)
    with pytest.raises(ValueError, match="Broken 2 is a Tensor: only data sets of images can be taken"):
        images.read(2)


def test_torchvision_data_in_grey(toys):
    grey = open_source("torchvision:BySplit", channels=1).train
    assert np.array_equal(grey.read(1)[0].numpy(), np.asarray(as_pil(picture(8, 8, seed=1)).convert("L")))
    with pytest.raises(ValueError, match=r"it has 1 channels \(L\), but 4 were asked for"):
        open_source("torchvision:BySplit", channels=4).train.read(0)


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
