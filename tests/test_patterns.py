"""The generated dataset: a pure function of (seed, index), balanced, and alike in colour."""

import pytest
import torch
from torch.nn.functional import avg_pool2d

from ecpp.data.patterns import CLASSES, labels, render


@pytest.mark.parametrize("size", [1, 16, 20, 32, 33, 64, 224])
def test_shape_and_type(size):
    images = render(range(12), size=size)
    assert images.shape == (12, 3, size, size)
    assert images.dtype == torch.uint8


def test_an_image_does_not_depend_on_its_company():
    index = torch.randint(2**40, (300,), generator=torch.Generator().manual_seed(0))
    images = render(index, seed=3)
    assert torch.equal(images, render(index, seed=3))
    assert torch.equal(images.flip(0), render(index.flip(0), seed=3))
    assert torch.equal(images[100:117], render(index[100:117].tolist(), seed=3))
    for i in range(len(index)):
        assert torch.equal(images[i : i + 1], render(index[i : i + 1], seed=3))


def test_threads_change_nothing():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = render(range(200), size=48)
        torch.set_num_threads(2)
        assert torch.equal(one, render(range(200), size=48))
    finally:
        torch.set_num_threads(before)


def test_seeds_and_indices_tell_images_apart():
    images = torch.cat([render(range(200), seed=s) for s in (0, 1, -1, 2**63)])
    assert len(torch.unique(images.flatten(1), dim=0)) == 800
    far = torch.cat([render([2**40 - 1]), render([2**40 - 1 - 10 * 2**32])])
    assert not torch.equal(far[0], far[1])


def test_global_random_state_is_neither_read_nor_written():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = render(range(10))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert torch.equal(first, render(range(10)))


def test_labels_are_balanced():
    y = labels(range(1000), 7)
    assert y.dtype == torch.int64
    assert torch.bincount(y).tolist() == [100] * len(CLASSES)
    assert len(set(CLASSES)) == 10
    assert labels(torch.tensor([2**40 + 3])).item() == (2**40 + 3) % 10


def test_resolution_only_resamples_the_scene():
    small = render(range(100), size=32).float()
    for factor in (2, 4):
        large = avg_pool2d(render(range(100), size=32 * factor).float(), factor)
        assert (small - large).abs().mean() < 5  # of 255; two unlike images differ by about 70


def test_colour_tells_no_class():
    images = render(range(2000)).float()
    mean = images.mean((2, 3))
    by_class = torch.stack([mean[k::10].mean(0) for k in range(10)])
    assert (by_class.amax(0) - by_class.amin(0)).max() < 6
    assert mean.std(0).max() < 15  # from image to image, too
    spread = torch.stack([images[k::10].std((2, 3)).mean(0) for k in range(10)])
    assert (spread.amax(0) / spread.amin(0)).max() < 1.15


def test_no_image_is_empty():
    assert render(range(500)).float().std((2, 3)).min() > 15


def test_nothing_to_render():
    assert render([]).shape == (0, 3, 32, 32)
    assert labels([]).dtype == torch.int64


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="negative"):
        render([3, -1])
    with pytest.raises(ValueError, match="float32"):
        render([0.5])
    with pytest.raises(ValueError, match="size=0"):
        render([0], size=0)
