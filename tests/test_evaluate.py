import math

import pytest
import torch
import torchvision.transforms.v2 as T
from PIL import Image
from torch import nn

from ecpp.data import open_source, source
from ecpp.evaluate import Preprocess, calibrate, features, knn_accuracy
from ecpp.evaluate.knn import GRID_K, GRID_TEMPERATURE, Knn, choose_knn, knn_score

PLAIN = Preprocess(16, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
CIFAR = Preprocess(16, (0.49, 0.48, 0.45), (0.2, 0.2, 0.25))
N = 21


def picture(height, width, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=g, dtype=torch.uint8)


def write(root, images):
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(root / f"{i:03d}.png")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, [picture(16, 16, seed=i) for i in range(N)])
    return tmp_path


def encoder():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


class Tensors:
    """A source in memory."""

    labels, classes, channels = None, (), 3

    def __init__(self, pixels):
        self.pixels = pixels

    def __len__(self):
        return len(self.pixels)

    def name(self, index):
        return str(index)

    def read(self, index):
        return self.pixels[index]

    def in_memory(self):
        return source.Decoded(self.pixels, {})


# --- features -------------------------------------------------------------------------------------------


class Mean(nn.Module):
    """The mean of every channel, and a record of the batches."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        return x.mean(dim=(2, 3)) * self.weight


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("batch_size", [1, 5, 7, N, 100])
def test_features_come_once_each_and_in_order(folder, monkeypatch, memory, batch_size):
    if not memory:
        monkeypatch.setattr(source, "IN_MEMORY_BYTES", 0)
    images = open_source(str(folder)).train
    assert (images.in_memory() is not None) is memory
    net = Mean()
    found = features(net, images, PLAIN, batch_size=batch_size)
    got = found.values
    assert torch.equal(found.index, torch.arange(N))
    assert found.unreadable == ()
    expected = torch.stack([picture(16, 16, seed=i).float().mean(dim=(1, 2)) / 255 for i in range(N)])
    assert torch.allclose(got, expected, atol=1e-6)
    assert got.dtype == torch.float32
    assert not got.requires_grad
    assert sum(net.seen) == N
    assert len(net.seen) == math.ceil(N / batch_size)


@pytest.mark.parametrize("size", [16, 12])
def test_features_are_the_same_from_memory_and_from_files(folder, monkeypatch, size):
    preprocess = Preprocess(size, CIFAR.mean, CIFAR.std)
    net = encoder()
    inside = features(net, open_source(str(folder)).train, preprocess, batch_size=8)
    monkeypatch.setattr(source, "IN_MEMORY_BYTES", 0)
    outside = features(net, open_source(str(folder)).train, preprocess, batch_size=8)
    workers = features(net, open_source(str(folder)).train, preprocess, batch_size=8, workers=1)
    assert torch.equal(inside.values, outside.values)
    assert torch.equal(inside.values, workers.values)


def test_images_of_different_sizes_have_features_too(tmp_path):
    images = [picture(16 + i, 20 - i, seed=i) for i in range(5)]
    write(tmp_path, images)
    net = encoder()
    got = features(net, open_source(str(tmp_path)).train, CIFAR, batch_size=3).values
    for i, image in enumerate(images):
        alone = features(net, Tensors(image[None]), CIFAR).values
        assert torch.allclose(got[i], alone[0], atol=1e-6)


@pytest.mark.parametrize(("memory", "workers"), [(True, 0), (False, 0), (False, 1)])
def test_a_broken_file_among_the_images_is_left_out_and_named(folder, monkeypatch, memory, workers):
    whole = features(Mean(), open_source(str(folder)).train, PLAIN, batch_size=4).values
    if not memory:
        monkeypatch.setattr(source, "IN_MEMORY_BYTES", 0)
    (folder / "005.png").write_bytes(b"no image")
    got = features(Mean(), open_source(str(folder)).train, PLAIN, batch_size=4, workers=workers)
    assert got.index.tolist() == [i for i in range(N) if i != 5]
    assert torch.equal(got.values, whole[got.index])
    assert [e.name for e in got.unreadable] == [str(folder / "005.png")]
    for i in range(N):
        (folder / f"{i:03}.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=rf"none of the {N} images can be read, such as .*000\.png"):
        features(Mean(), open_source(str(folder)).train, PLAIN)


@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_is_frozen_for_its_features_and_no_longer(training):
    net = encoder().train(training)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    pixels = torch.stack([picture(16, 16, seed=i) for i in range(6)])
    together = features(net, Tensors(pixels), CIFAR).values
    alone = features(net, Tensors(pixels[3:4]), CIFAR).values
    assert torch.allclose(together[3], alone[0], atol=1e-6)  # no image sees its batch
    assert all(m.training is training for m in net.modules())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_features_in_bf16_come_as_fp32():
    pixels = torch.stack([picture(16, 16, seed=i) for i in range(6)])
    full, half = (features(encoder(), Tensors(pixels), CIFAR, bf16=b).values for b in (False, True))
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    assert torch.allclose(half, full, atol=0.05)


# --- preprocessing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [32, 64])
def test_a_small_image_is_resized_as_a_whole(size):
    preprocess = Preprocess(size, (0.0,) * 3, (1.0,) * 3)
    same = picture(size, size)[None]
    assert torch.equal(preprocess.geometry(same), same)
    for height, width in ((40, 40), (28, 28), (50, 31), (size, 200)):
        image = picture(height, width)[None]
        got = preprocess.geometry(image)
        expected = T.functional.resize(image, [size, size], antialias=True)
        assert got.dtype == torch.uint8
        assert (got.int() - expected.int()).abs().max() <= 1
    stripes = torch.zeros(1, 3, 40, 80, dtype=torch.uint8)
    stripes[..., :4], stripes[..., -4:] = 255, 255
    assert (preprocess.geometry(stripes)[..., [0, -1]] > 200).all()  # nothing is cut off


@pytest.mark.parametrize("size", [224, 96])
@pytest.mark.parametrize(("height", "width"), [
    (300, 400), (400, 300), (256, 341), (333, 500), (500, 333), (225, 224), (100, 130), (480, 641), (601, 349),
    (224, 300), (300, 224), (1000, 333), (96, 97),
])  # fmt: skip
def test_a_large_image_is_cut_as_torchvision_cuts_it(size, height, width):
    image = picture(height, width)[None]
    got = Preprocess(size, (0.0,) * 3, (1.0,) * 3).geometry(image)
    expected = T.Compose([T.Resize(round(size * 256 / 224), antialias=True), T.CenterCrop(size)])(image)
    assert got.shape == (1, 3, size, size)
    assert (got.int() - expected.int()).abs().max() <= 2


def test_pixels_are_normalised_by_channel():
    image = picture(16, 16)[None]
    got = CIFAR.normalise(image)
    assert torch.allclose(got, T.functional.normalize(image / 255, CIFAR.mean, CIFAR.std), atol=1e-6)
    assert got.is_contiguous(memory_format=torch.channels_last)


# --- calibration ----------------------------------------------------------------------------------------


class Channels(nn.Module):
    """BatchNorm on the pixels themselves, so that its statistics are known."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.bn = nn.BatchNorm2d(3, momentum=momentum)

    def forward(self, x):
        return self.bn(x).mean(dim=(2, 3))


def statistics(parts):
    """Mean over batches of each batch's mean and unbiased variance."""
    channels = [p.permute(1, 0, 2, 3).flatten(1).double() / 255 for p in parts]
    mean = torch.stack([c.mean(dim=1) for c in channels]).mean(dim=0)
    return mean, torch.stack([c.var(dim=1) for c in channels]).mean(dim=0)


@pytest.mark.parametrize(
    ("n", "count", "batches"), [(600, 50, [256, 256, 88]), (600, 2, [256, 256]), (257, 50, [256])]
)
def test_calibration_is_the_mean_over_batches(n, count, batches):
    g = torch.Generator().manual_seed(0)
    bright = torch.linspace(20, 255, n)[:, None, None, None]  # so that no two batches are alike
    pixels = (torch.rand(n, 3, 4, 4, generator=g) * bright).to(torch.uint8)
    net = Channels(momentum=0.3)
    net(torch.rand(9, 3, 4, 4) * 50 + 7)  # what was seen before is forgotten
    weights = [p.clone() for p in net.parameters()]
    calibrate(net, Tensors(pixels), Preprocess(4, PLAIN.mean, PLAIN.std), count=count)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))  # a folder is sorted by class
    mean, var = statistics(torch.split(pixels[order[: sum(batches)]], batches))
    assert torch.allclose(net.bn.running_mean.double(), mean, atol=1e-5)
    assert torch.allclose(net.bn.running_var.double(), var, atol=1e-5)
    assert net.bn.momentum == 0.3
    assert not net.training
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))


# --- nearest neighbours ---------------------------------------------------------------------------------


def clusters(n, seed=0, spread=0.1, d=8):
    """Three clusters, one around each of the first axes."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return torch.eye(3, d)[labels] + torch.randn(n, d, generator=g) * spread, labels


def literal_knn(train, labels, test, truth, k, temperature):
    right = 0
    for query, answer in zip(test.double(), truth.tolist(), strict=True):
        cosines = [float(query @ t / (query.norm() * t.norm())) for t in train.double()]
        nearest = sorted(range(len(train)), key=lambda i: -cosines[i])[:k]
        votes = {}
        for i in nearest:
            c = int(labels[i])
            votes[c] = votes.get(c, 0.0) + math.exp(cosines[i] / temperature)
        right += max(votes, key=votes.get) == answer
    return right / len(test)


@pytest.mark.parametrize("k", [1, 20, 60, 1000])
def test_clusters_are_their_own_neighbours(k):
    train, labels = clusters(60)
    test, truth = clusters(30, seed=1)
    assert knn_accuracy(train, labels, test, truth, k=k) == 1.0
    assert knn_accuracy(train, labels, test, (truth + 1) % 3, k=k) == 0.0


@pytest.mark.parametrize("k", [1, 3, 20, 200])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_knn_equals_the_literal_loop(k, temperature):
    train, labels = clusters(120, spread=0.8)
    test, truth = clusters(80, seed=1, spread=0.8)
    train = train * torch.linspace(0.1, 10, 120)[:, None]  # lengths do not count
    got = knn_accuracy(train, labels, test, truth, k=k, temperature=temperature)
    assert got == literal_knn(train, labels, test, truth, k, temperature)
    assert 0.4 < got < 0.95


def test_the_temperature_says_how_much_the_nearest_counts():
    train = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8], [0.6, 0.8]])
    labels, query = torch.tensor([0, 1, 1, 1]), torch.tensor([[2.0, 0.0]])
    for temperature, winner in ((0.07, 0), (10.0, 1)):
        one = knn_accuracy(train, labels, query, torch.tensor([winner]), k=4, temperature=temperature)
        assert one == 1.0


def test_knn_judges_more_images_than_fit_in_one_pass():
    train, labels = clusters(30)
    test, truth = clusters(1500, seed=1)
    truth[1400:] = (truth[1400:] + 1) % 3
    assert knn_accuracy(train, labels, test, truth) == 1400 / 1500


def test_knn_needs_both_sides():
    f, labels = clusters(3)
    for train, test in ((f[:0], f), (f, f[:0])):
        with pytest.raises(ValueError, match=f"has {len(train)} to vote and {len(test)} to judge"):
            knn_accuracy(train, labels[: len(train)], test, labels[: len(test)])


def test_the_grid_of_knn_asks_training_images_of_each_other():
    train, labels = clusters(60, spread=0.8)
    chosen, tried = choose_knn(train, labels)
    assert set(tried) == {Knn(k, t) for k in (1, 5, 10, 20, 50, 59) for t in GRID_TEMPERATURE}
    assert set(GRID_K) == {1, 5, 10, 20, 50, 100, 200}
    for knn in (Knn(1, 0.02), Knn(5, 0.1), Knn(59, 0.5), chosen):
        right = 0.0
        for i in range(60):
            others = [j for j in range(60) if j != i]
            asked = train[i : i + 1], labels[i : i + 1]
            right += literal_knn(train[others], labels[others], *asked, knn.k, knn.temperature)
        assert tried[knn] == pytest.approx(right / 60)
    assert tried[chosen] == max(tried.values())
    with pytest.raises(ValueError, match="at least two"):
        choose_knn(train[:1], labels[:1])


def test_knn_counts_five_answers_and_each_class():
    train, labels = torch.eye(8) + 0.1 * torch.arange(8.0), torch.arange(8)
    found = knn_score(train, labels, train[[0, 1, 1, 1]], torch.tensor([0, 1, 7, 0]), Knn(k=3), classes=9)
    assert found.top1 == 0.5
    assert (
        found.top5 == 0.75
    )  # 7 is among the three that vote for the second; 0 has no vote, so it is no answer
    assert found.per_class == (0.5, 1.0, None, None, None, None, None, 0.0, None)
    nobody = knn_score(train[:1], labels[:1], train[1:2], torch.tensor([1]), Knn(k=3), classes=9)
    assert nobody.top5 == 0.0
