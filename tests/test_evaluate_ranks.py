"""Features and counts on several processes are those of one."""

import pytest
import torch
from PIL import Image
from ranks import on_ranks
from torch import nn

from ecpp.data import open_source, source
from ecpp.evaluate import FeatureCache, Preprocess, Sides, features
from ecpp.evaluate.linear import LinearProtocol
from ecpp.evaluate.protocols import FROZEN

PREPROCESS = Preprocess(12, (0.49, 0.48, 0.45), (0.2, 0.2, 0.25))
N, BATCH = 37, 4
BROKEN = (3, 17, 36)


class Encoder(nn.Sequential):
    """It remembers how many images it saw."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


def write(root):
    for i in range(N):
        folder = root / f"class{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        g = torch.Generator().manual_seed(i)
        pixels = torch.randint(0, 120, (16, 16, 3), generator=g, dtype=torch.uint8)
        pixels[..., i % 3] += 60 + i % 7
        Image.fromarray(pixels.numpy()).save(folder / f"{i:03}.png")
    images = open_source(str(root)).train
    for i in BROKEN:
        (root / images.name(i)).write_bytes(b"no image")
    return str(root)


def ask(folder, memory, out):
    """What one rank sees: the features, the broken files, how many images it worked on, and the accuracies."""
    if not memory:
        source.IN_MEMORY_BYTES = 0  # in a process of its own
    images = open_source(folder).train
    net = Encoder()
    keep = FeatureCache(out)
    first, again = (
        keep.get({}, N, lambda: features(net, images, PREPROCESS, batch_size=BATCH)) for _ in range(2)
    )
    values, index, unreadable = first.features.values, first.features.index, first.features.unreadable
    labels = images.labels[index]
    here = Sides(values[::2], labels[::2], values[1::2], labels[1::2], 3)
    protocol = LinearProtocol(epochs=20, batch_size=8)
    scores = [FROZEN[name](here, protocol, seed=0, bf16=False).score for name in FROZEN]
    return {
        "values": values,
        "index": index,
        "unreadable": sorted(e.name for e in unreadable),
        "seen": net.seen,
        "scores": [list(s) for s in scores],
        "again": again.cached and torch.equal(again.features.values, values),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("images") / "all")


def few(folder):
    """One batch holds all: all ranks but one have nothing to do."""
    images = open_source(folder).train
    return features(Encoder(), images, PREPROCESS, batch_size=N).values


def all_of_them(folder, out):
    return {
        "few": few(folder),
        "in memory": ask(folder, True, out / "memory"),
        "from files": ask(folder, False, out / "files"),
    }


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_work_and_count_as_one(folder, tmp_path, monkeypatch, world):
    monkeypatch.setattr(source, "IN_MEMORY_BYTES", source.IN_MEMORY_BYTES)
    alone = all_of_them(folder, tmp_path / "alone")
    ranks = on_ranks(world, all_of_them, folder, tmp_path / "shared")
    for way in ("in memory", "from files"):
        one, many = alone[way], [r[way] for r in ranks]
        assert one["index"].tolist() == [i for i in range(N) if i not in BROKEN]
        assert (
            one["seen"] == sum(r["seen"] for r in many) == N - len(BROKEN)
        )  # each image once, by one of them
        assert max(r["seen"] for r in many) < one["seen"]
        for r in many:
            assert r["again"]
            assert all(torch.equal(r[key], one[key]) for key in ("values", "index"))
            assert all(r[key] == one[key] for key in ("unreadable", "scores"))
    assert len(list((tmp_path / "shared").glob("*/*.npy"))) == 2  # the first rank alone writes
    assert all(torch.equal(r["few"], alone["few"]) for r in ranks)
