"""Features kept in files: used again where all is the same, computed anew where anything is not."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from ecpp.data import Unreadable, open_source
from ecpp.evaluate import FeatureCache, Features, cache
from ecpp.evaluate.cache import hash_images, hash_weights


class Work:
    """Stands for an encoder: counts how often it is asked."""

    def __init__(self, n=6, d=4, missing=(2,)):
        index = torch.tensor([i for i in range(n) if i not in missing])
        errors = tuple(Unreadable(f"{i}.png", "it is no image") for i in missing)
        g = torch.Generator().manual_seed(n)
        self.features = Features(torch.randn(len(index), d, generator=g), index, errors)
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.features


def same(a, b):
    return (
        torch.equal(a.values, b.values)
        and torch.equal(a.index, b.index)
        and [(e.name, e.reason) for e in a.unreadable] == [(e.name, e.reason) for e in b.unreadable]
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_features_are_computed_once(tmp_path, monkeypatch, mapped):
    if mapped:
        monkeypatch.setattr(cache, "MAPPED", 0)
    work, said = Work(), []
    keep = FeatureCache(tmp_path / "features", say=said.append)
    first = keep.get({"a": 1}, 6, work)
    second = keep.get({"a": 1}, 6, work)
    assert (first.cached, second.cached, work.asked) == (False, True, 1)
    assert same(first.features, second.features)
    assert second.seconds == first.seconds  # what it cost then is what it costs
    second.features.values.zero_()  # whoever writes into them changes no file
    assert same(keep.get({"a": 1}, 6, work).features, first.features)
    assert work.asked == 1
    keep.get({"a": 2}, 6, work)
    assert work.asked == 2
    assert said == []
    assert not [f for f in os.listdir(tmp_path / "features") if "tmp" in f]


def test_nothing_is_kept_without_a_folder(tmp_path):
    work = Work()
    for _ in range(2):
        assert not FeatureCache(None).get({}, 6, work).cached
    assert work.asked == 2


def cut(values, about):
    values.write_bytes(values.read_bytes()[:-3])


def flip(values, about):
    raw = bytearray(values.read_bytes())
    raw[-1] ^= 1
    values.write_bytes(raw)


def other(values, about):
    np.save(values, np.zeros((3, 4), np.float32))


def double(values, about):
    np.save(values, np.load(values).astype(np.float64))


def empty(values, about):
    values.write_bytes(b"")


def no_json(values, about):
    about.write_text("{")


def no_key(values, about):
    text = json.loads(about.read_text())
    del text["crc"]
    about.write_text(json.dumps(text))


@pytest.mark.parametrize("damage", [cut, flip, other, double, empty, no_json, no_key])
@pytest.mark.parametrize("mapped", [False, True])
def test_what_is_damaged_is_computed_anew_with_a_word(tmp_path, monkeypatch, damage, mapped):
    if mapped:
        monkeypatch.setattr(cache, "MAPPED", 0)
    work, said = Work(), []
    keep = FeatureCache(tmp_path, say=said.append)
    keep.get({}, 6, work)
    damage(*tmp_path.glob("*.npy"), *tmp_path.glob("*.json"))
    again = keep.get({}, 6, work)
    assert not again.cached
    assert work.asked == 2
    assert same(again.features, work.features)
    assert "computed anew" in said[0]
    assert keep.get({}, 6, work).cached
    assert len(said) == 1


def test_another_number_of_images_is_never_answered_from_a_file(tmp_path):
    keep = FeatureCache(tmp_path)
    keep.get({}, 6, Work())
    assert not keep.get({}, 7, Work(7)).cached


def test_those_asked_for_longest_ago_go_first(tmp_path):
    size = 5 * 4 * 4 + 128  # of one file
    keep = FeatureCache(tmp_path, limit=2 * size)
    for i in range(3):
        keep.get({"i": i}, 6, Work())
        for k, file in enumerate(sorted(tmp_path.glob("*.json"), key=lambda f: f.stat().st_mtime)):
            os.utime(file, (1000 + k, 1000 + k))
        if i == 1:
            assert keep.get({"i": 0}, 6, Work()).cached  # so that the second is the one not asked for
    assert len(list(tmp_path.glob("*.npy"))) == len(list(tmp_path.glob("*.json"))) == 2
    work = Work()
    assert [keep.get({"i": i}, 6, work).cached for i in (0, 2)] == [True, True]
    assert not FeatureCache(tmp_path / "small", limit=10).get({}, 6, work).cached
    assert not (tmp_path / "small").exists()  # larger than all that may be kept


def test_weights_and_statistics_tell_encoders_apart():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = hash_weights(net)
    assert hash_weights(net) == before
    net[1].running_mean += 1
    after = hash_weights(net)
    assert after != before
    with torch.no_grad():
        net[0].weight[0, 0] += 1e-6
    assert hash_weights(net) not in (before, after)


def test_images_are_told_apart_by_name_order_and_content(tmp_path):
    def folder(name, files):
        (tmp_path / name).mkdir()
        for file, value in files.items():
            Image.new("RGB", (8, 8), (value, 0, 0)).save(tmp_path / name / file)
        return hash_images(open_source(str(tmp_path / name)).train)

    one = folder("one", {"a.png": 1, "b.png": 2})
    assert folder("same", {"a.png": 1, "b.png": 2}) == one
    assert folder("names", {"a.png": 1, "c.png": 2}) != one
    assert folder("content", {"a.png": 1, "b.png": 3}) != one
    assert folder("more", {"a.png": 1, "b.png": 2, "c.png": 2}) != one
    assert len({hash_images(open_source(name).train) for name in ("patterns:40", "patterns:50")}) == 2
