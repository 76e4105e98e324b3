"""Data sets of the hub as they lie on disk: parquet, saved folders, and what cannot be reached."""

import io
import pickle
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pictures import as_pil, picture

from ecpp.data import Stream, Unreadable, open_source
from ecpp.views import plan

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """The library's cache in a folder of its own, and no network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def png(image):
    out = io.BytesIO()
    as_pil(image).save(out, "PNG")
    return out.getvalue()


def rows(n, first=0, classes=3, size=(12, 10)):
    """As the hub stores CIFAR-10: an image with its bytes and its file's name, and a label."""
    return [
        {"img": {"bytes": png(picture(*size, seed=i)), "path": f"{i:05d}.png"}, "label": i % classes}
        for i in range(first, first + n)
    ]


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(values), path)


def shown(images):
    return {images.name(i): images.read(i) for i in range(len(images))}


def test_parquet_without_metadata_is_read_as_it_lies(tmp_path):
    write(tmp_path / "train.parquet", rows(9))
    write(tmp_path / "test.parquet", rows(6, first=9))
    splits = open_source(f"hf:{tmp_path}")
    assert [splits.train.name(i) for i in (0, 8)] == ["00000.png", "00008.png"]
    assert splits.train.labels.tolist() == [0, 1, 2] * 3
    assert splits.train.labels.dtype == torch.int64
    assert splits.train.classes == splits.test.classes == ("0", "1", "2")
    assert splits.test.name(0) == "00009.png"
    for i in range(9):
        assert torch.equal(splits.train.read(i), picture(seed=i))
    assert torch.equal(splits.test.in_memory().pixels[5], picture(seed=14))
    assert splits.notes == ()


@pytest.mark.parametrize("kind", ["dict", "one"])
def test_a_saved_folder_keeps_its_classes(tmp_path, kind):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    values = [{"image": as_pil(picture(seed=i)), "label": i % 2} for i in range(6)]
    train = datasets.Dataset.from_list(values, features=features)
    if kind == "dict":
        test = datasets.Dataset.from_list(values[:4], features=features)
        datasets.DatasetDict({"train": train, "validation": test}).save_to_disk(tmp_path / "saved")
    else:
        train.save_to_disk(tmp_path / "saved")
    splits = open_source(f"hf:{tmp_path / 'saved'}")
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.labels.tolist() == [0, 1] * 3
    assert torch.equal(splits.train.read(5), picture(seed=5))
    assert splits.train.name(2) == "train 2"  # images made in memory have no file
    assert (splits.test is not None) == (kind == "dict")


def test_parquet_of_the_library_in_several_pieces(tmp_path):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    for piece in range(2):
        values = [
            {"image": {"bytes": png(picture(seed=i)), "path": f"{i}.png"}, "label": i % 2}
            for i in range(3 * piece, 3 * piece + 3)
        ]
        (tmp_path / "data").mkdir(exist_ok=True)
        made = datasets.Dataset.from_list(values, features=features)
        made.to_parquet(tmp_path / "data" / f"train-0000{piece}-of-00002.parquet")
        made.to_parquet(tmp_path / "data" / f"validation-0000{piece}-of-00002.parquet")
    splits = open_source(f"hf:{tmp_path}")
    assert len(splits.train) == len(splits.test) == 6
    assert splits.train.classes == ("cat", "dog")
    assert {n: x.sum() for n, x in shown(splits.train).items()} == {
        f"{i}.png": picture(seed=i).sum() for i in range(6)
    }


def test_labels_may_be_words_and_names_may_come_again(tmp_path):
    values = [{"image": png(picture(seed=i)), "label": word} for i, word in enumerate(("dog", "cat", "dog"))]
    write(tmp_path / "words.parquet", values)
    images = open_source(f"hf:{tmp_path / 'words.parquet'}").train
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [1, 0, 1]
    assert torch.equal(images.read(1), picture(seed=1))
    paths = ["/home/someone/a.png", "b.png", "a.png", None]
    values = [
        {"img": {"bytes": png(picture(seed=i)), "path": path}, "label": None if i else 1}
        for i, path in enumerate(paths)
    ]
    write(tmp_path / "twice.parquet", values)
    splits = open_source(f"hf:{tmp_path / 'twice.parquet'}")
    assert [splits.train.name(i) for i in range(4)] == [
        "a.png (train 0)", "b.png", "a.png (train 2)", "train 3",
    ]  # fmt: skip
    assert splits.train.labels is None
    assert splits.notes == ("no labels are taken of train: 3 of its 4 rows have none",)


def test_rows_may_name_files_and_bad_rows_are_unreadable(tmp_path):
    as_pil(picture(seed=7)).save(tmp_path / "beside.png")
    values = [
        {"img": {"bytes": None, "path": str(tmp_path / "beside.png")}},
        {"img": {"bytes": b"no image", "path": "bad.png"}},
        {"img": {"bytes": None, "path": "absent.png"}},
        {"img": {"bytes": png(picture(seed=3)), "path": "good.png"}},
    ]
    write(tmp_path / "mixed.parquet", values)
    images = open_source(f"hf:{tmp_path / 'mixed.parquet'}").train
    assert torch.equal(images.read(0), picture(seed=7))
    assert torch.equal(images.read(3), picture(seed=3))
    for i, words in ((1, "no image of a known kind"), (2, "holds no bytes, and absent.png is no file")):
        with pytest.raises(Unreadable, match=words) as e:
            images.read(i)
        assert f"(train {i})" in e.value.name
    assert list(images.in_memory().unreadable) == [1, 2]


def test_grey_and_many_channels(tmp_path):
    write(tmp_path / "train.parquet", rows(3))
    images = open_source(f"hf:{tmp_path}", channels=1).train
    grey = np.asarray(as_pil(picture(seed=1)).convert("L"))
    assert np.array_equal(images.read(1)[0].numpy(), grey)


def test_workers_read_the_same_rows(tmp_path):
    write(tmp_path / "train.parquet", rows(8, size=(120, 110)))
    images = open_source(f"hf:{tmp_path}").train
    assert images.in_memory() is None
    views = plan(2, large=16)
    alone = list(Stream(images, views, batch_size=4, seed=0).batches(0, 2))
    for a, b in zip(alone, Stream(images, views, batch_size=4, seed=0, workers=1).batches(0, 2), strict=True):
        assert torch.equal(a.groups[0], b.groups[0])


def test_a_worker_is_sent_no_copy_of_the_images(tmp_path):
    write(tmp_path / "train.parquet", rows(200, size=(40, 40)))
    images = open_source(f"hf:{tmp_path}").train
    sent = pickle.dumps(images)
    assert len(sent) < 200 * 40 * 40 / 4
    again = pickle.loads(sent)
    assert again.name(150) == "00150.png"
    assert torch.equal(again.read(150), images.read(150))


# --- mistakes -------------------------------------------------------------------------------------------


def test_the_library_may_be_missing(tmp_path, monkeypatch):
    write(tmp_path / "train.parquet", rows(2))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the library datasets .*pip install 'ecpp\[hf\]'"):
        open_source(f"hf:{tmp_path}")


def test_what_is_neither_on_disk_nor_on_the_hub(tmp_path):
    with pytest.raises(ValueError, match=r"datasets could not open hf:nobody/nothing: .*Check its name") as e:
        open_source("hf:nobody/nothing")
    assert "\n" not in str(e.value)
    for name in (f"{tmp_path}/nowhere", "./nowhere", "some/where/else", "train.parquet"):
        with pytest.raises(FileNotFoundError, match=f"no file or folder {name}: give one, or OWNER/NAME"):
            open_source(f"hf:{name}")
    with pytest.raises(ValueError, match="is no parquet file, holds none"):
        open_source(f"hf:{tmp_path}")


def test_parquet_that_is_none_or_holds_no_images(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 these are words")
    with pytest.raises(ValueError, match="datasets could not open hf:"):
        open_source(f"hf:{tmp_path}")
    write(tmp_path / "train.parquet", [{"number": 1, "word": "x"}])
    with pytest.raises(ValueError, match=r"should have one column of images .* it has 0 among number, word"):
        open_source(f"hf:{tmp_path}")
    two = {"one": {"bytes": png(picture()), "path": "1"}, "two": {"bytes": png(picture()), "path": "2"}}
    write(tmp_path / "train.parquet", [two])
    with pytest.raises(ValueError, match="it has 2 among one, two"):
        open_source(f"hf:{tmp_path}")


def test_splits_of_other_classes_and_of_no_use(tmp_path):
    write(tmp_path / "train.parquet", rows(6))
    write(tmp_path / "test.parquet", [{"img": r["img"], "label": -1} for r in rows(3)])
    write(tmp_path / "validation.parquet", rows(3))
    splits = open_source(f"hf:{tmp_path}")
    assert splits.test.split == "validation"
    assert splits.notes == ("left out, as it has no labels to count on: the split test",)
    write(tmp_path / "test.parquet", rows(4, classes=4))
    with pytest.raises(ValueError, match="different classes, such as 3"):
        open_source(f"hf:{tmp_path}")
