import io
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from ecpp.data.crops import Cutter
from ecpp.data.decode import decode
from ecpp.views import (
    CIFAR,
    IMAGENET,
    Colour,
    View,
    ViewPlan,
    colour,
    compiled,
    draw,
    draws,
    finish,
    geometry,
    make,
    plan,
    render,
)


def pictures(n, height=40, width=40, seed=0):
    """Smooth random uint8 images: noise alone would hide errors of half a pixel."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 7, 5, generator=g)
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    return ((fine * 0.9 + torch.rand(n, 3, height, width, generator=g) * 0.1) * 255).to(torch.uint8)


def drawn(p, n, *, height=40, width=40, seed=0, epoch=0):
    sizes = torch.tensor([[height, width]]).expand(n, 2)
    return draw(p, torch.arange(n), sizes, seed=seed, epoch=epoch)


@pytest.fixture(params=["torch", "compiled"])
def kernel(request):
    if request.param == "compiled" and (reason := compiled.available()):
        pytest.skip(reason)
    return request.param


# --- the plan -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "large", "small", "crop_only"), [
    (2, 2, 0, 0), (3, 2, 0, 1), (4, 2, 0, 2), (5, 2, 1, 2), (6, 2, 1, 3), (7, 2, 2, 3), (8, 2, 2, 4),
])  # fmt: skip
def test_the_plan_is_the_papers_list(k, large, small, crop_only):
    views = plan(k, large=224, small=96).views
    assert [(v.size, v.kind) for v in views] == (
        [(224, "SimCLR")] * large + [(96, "SimCLR")] * small + [(96, "crop-only")] * crop_only
    )
    assert all(v.colour == IMAGENET.colour for v in views if v.kind == "SimCLR")
    assert all(v.flip_p == (0.5 if v.colour else 0) for v in views)
    cifar = plan(k, large=32)
    assert [v.size for v in cifar.views] == [32] * k
    assert [v.kind for v in cifar.views] == [v.kind for v in views]
    assert cifar.views[0].colour == CIFAR.colour
    assert cifar.pairs_per_image == k * (k - 1) // 2
    assert cifar.relative_compute == k


@pytest.mark.parametrize(("k", "compute"), [(2, 2), (4, 2.3673), (6, 2.7347), (8, 3.1020)])
def test_the_cost_is_that_of_table_1(k, compute):
    p = plan(k, large=224, small=96)
    assert p.relative_compute == pytest.approx(compute, abs=1e-4)
    expected = ((224, (0, 1)),) if k == 2 else ((224, (0, 1)), (96, tuple(range(2, k))))
    assert p.groups == expected


def test_n_simclr_moves_the_border_between_the_kinds():
    kinds = [v.kind for v in plan(6, large=32, n_simclr=5).views]
    assert kinds == ["SimCLR"] * 5 + ["crop-only"]


@pytest.mark.parametrize(("arguments", "hint"), [
    ({"k": 1, "large": 32}, "K >= 2"),
    ({"k": 4, "large": 32, "n_simclr": 1}, "n_simclr"),
    ({"k": 4, "large": 32, "n_simclr": 5}, "n_simclr"),
    ({"k": 4, "large": 32, "small": 64}, "swap"),
    ({"k": 8, "large": 224, "small": 8}, "reflects"),
    ({"k": 4, "large": 32, "crop_scale": (0.5, 0.2)}, "crop_scale"),
    ({"k": 4, "large": 32, "small": 0}, "pixel"),
])  # fmt: skip
def test_impossible_plans_say_why(arguments, hint):
    with pytest.raises(ValueError, match=hint):
        plan(**arguments)


# --- the draws ------------------------------------------------------------------------------------------


def splitmix(x):
    mask = 2**64 - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**6),
    st.integers(0, 2**40),
    st.integers(0, 31),
    st.integers(0, 40),
)
def test_a_draw_is_the_hash_of_its_coordinates(seed, epoch, sample, view, slot):
    step, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    x = splitmix((seed + step) & mask)
    for coordinate in (epoch, sample, view, slot):
        x = splitmix(((x ^ coordinate) + step) & mask)
    got = draws.uniform(seed, epoch, torch.tensor(sample), torch.tensor(view), torch.tensor(slot))
    assert got.item() == (x >> 11) / 2**53


def test_neighbouring_coordinates_are_independent():
    one = torch.arange(40)
    u = draws.uniform(0, 0, one[:, None, None], one[None, :20, None], one[None, None, :33]) - 0.5
    assert abs(u.mean()) < 4 / math.sqrt(12 * u.numel())
    for axis in range(3):
        a, b = u.narrow(axis, 0, u.shape[axis] - 1), u.narrow(axis, 1, u.shape[axis] - 1)
        correlation = (a * b).mean() * 12
        assert abs(correlation) < 4 / math.sqrt(a.numel())


def test_a_sample_has_the_same_views_whatever_its_batch():
    p = plan(6, large=32, small=20)
    whole = drawn(p, 64, seed=3, epoch=2)
    sizes = torch.tensor([[40, 40]])
    for sample in (0, 17, 63):
        alone = draw(p, torch.tensor([sample]), sizes, seed=3, epoch=2)
        for name in draws.Params.__dataclass_fields__:
            assert torch.equal(getattr(alone, name)[:, 0], getattr(whole, name)[:, sample]), name
    for other in (drawn(p, 64, seed=4, epoch=2), drawn(p, 64, seed=3, epoch=3)):
        assert not torch.equal(other.boxes, whole.boxes)


def test_rates_and_ranges_of_every_operation_per_view():
    n = 6000
    for look, p in ((CIFAR, plan(6, large=32, small=24)), (IMAGENET, plan(6, large=224, small=96))):
        params = drawn(p, n, height=300, width=400)
        for k, view in enumerate(p.views):
            c = view.colour
            rates = {
                "flip": (params.flip[k], view.flip_p),
                "jitter": (params.jitter[k], 0.8 if c else 0),
                "grey": (params.grey[k], 0.2 if c else 0),
                "blur": (params.sigma[k] > 0, look.colour.blur_p if c else 0),
                "solarize": (params.solarize[k], look.colour.solarize_p if c else 0),
            }
            for name, (happened, p_expected) in rates.items():
                got = happened.double().mean().item()
                spread = math.sqrt(p_expected * (1 - p_expected) / n)
                assert abs(got - p_expected) <= 4.5 * spread, (name, k, got)
            factors = params.factors[k][params.jitter[k]]
            for i, strength in enumerate((look.colour.brightness,) * 3 + (look.colour.hue,)):
                middle = 0 if i == 3 else 1
                if not c:
                    assert (params.factors[k, :, i] == middle).all()
                    continue
                f = factors[:, i]
                assert f.min() >= middle - strength
                assert f.max() <= middle + strength
                assert f.min() < middle - 0.97 * strength
                assert f.max() > middle + 0.97 * strength
                assert f.mean() == pytest.approx(middle, abs=0.05 * strength)
            assert (params.factors[k][~params.jitter[k]] == torch.tensor([1, 1, 1, 0])).all()
            if c and c.blur_p:
                sigma = params.sigma[k][params.sigma[k] > 0]
                assert 0.1 <= sigma.min() < 0.12
                assert 1.98 < sigma.max() <= 2.0
            orders = (params.order[k] * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)
            assert len(orders[0]) == 24
            assert (orders[1] - n / 24).abs().max() < 5 * math.sqrt(n / 24)
            assert (params.order[k].sort(dim=1).values == torch.arange(4)).all()


@pytest.mark.parametrize(("height", "width"), [(32, 32), (300, 400), (10, 200), (200, 10), (1, 50), (1, 1)])
def test_boxes_are_distributed_like_torchvisions(height, width):
    n = 4000
    p = plan(2, large=32)
    boxes = drawn(p, n, height=height, width=width).boxes[0]
    top, left, h, w = boxes.unbind(1)
    assert (h >= 1).all()
    assert (w >= 1).all()
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()
    image = torch.empty(3, height, width)
    torch.manual_seed(0)
    theirs = torch.tensor([RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    for ours, other in zip(boxes.unbind(1), theirs.unbind(1), strict=True):
        ours, other = ours.double().sort().values, other.double().sort().values
        grid = torch.linspace(-0.5, max(height, width) + 0.5, 400, dtype=torch.float64)
        gap = (torch.searchsorted(ours, grid) - torch.searchsorted(other, grid)).abs().max() / n
        assert gap < 1.95 * math.sqrt(2 / n)  # Kolmogorov–Smirnov at one in a thousand


# --- the pixels, against torchvision, one operation at a time -------------------------------------------


def close(got, expected, tolerance=1 / 255):
    difference = (got - expected).abs().max().item()
    assert difference <= tolerance, difference


@pytest.mark.parametrize("size", [17, 32, 48])
def test_crop_resize_flip(size):
    images = pictures(24)
    params = drawn(plan(3, large=size), 24)
    got = geometry.crop_resize_flip(images, params.boxes, params.flip, size) / 255
    mirrored = 0
    for k in range(3):
        for n in range(24):
            box = params.boxes[k, n].tolist()
            expected = TF.resized_crop(images[n].float() / 255, *box, [size, size], antialias=True)
            if params.flip[k, n]:
                expected, mirrored = TF.horizontal_flip(expected), mirrored + 1
            close(got[k, n], expected, 1e-5)
            one = geometry.crop_resize_one(images[n], params.boxes[k, n], size)
            close((one.flip(-1) if params.flip[k, n] else one) / 255, expected, 1.01 / 255)
    assert mirrored > 5


@pytest.mark.parametrize(("height", "width", "size"), [(40, 40, 32), (97, 130, 24), (1, 50, 16), (21, 9, 33)])
def test_crops_of_both_kernels_are_torchvisions(kernel, height, width, size):
    n, images = 24, pictures(24, height, width)
    p = ViewPlan((View(size), View(size, (0.05, 0.2))), (0.0,) * 3, (1.0,) * 3)
    params = drawn(p, n, height=height, width=width)
    assert params.flip.any()
    batch = render(p, images, torch.arange(n), params, kernel=kernel)
    for k in range(2):
        for i in range(n):
            expected = TF.resized_crop(
                images[i].float() / 255, *params.boxes[k, i].tolist(), [size] * 2, antialias=True
            )
            close(batch.view(k)[i], expected.flip(-1) if params.flip[k, i] else expected, 1e-5)


OPERATIONS = [TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue]


@pytest.mark.parametrize("operation", [0, 1, 2])
def test_blends(operation):
    x = pictures(40).float() / 255
    factors = torch.linspace(0.0, 2.0, 40)
    got = colour.blend_(x.clone(), colour.blends(torch.full((40,), operation), factors, x.device))
    for n in range(40):
        close(got[n], OPERATIONS[operation](x[n], factors[n].item()), 1e-5)


def test_hue():
    x = torch.cat(
        [pictures(40).float() / 255, torch.rand(4, 1, 40, 40).expand(4, 3, 40, 40)]
    )  # grey ones too
    x[0, :, :3, :3] = torch.tensor([0.0, 0.5, 1.0]).view(3, 1)
    shift = torch.linspace(-0.5, 0.5, 44)
    got = colour.shift_hue(x, shift)
    for n in range(44):
        close(got[n], TF.adjust_hue(x[n], shift[n].item()), 1e-4)


@pytest.mark.parametrize(("size", "kernel"), [(32, 23), (96, 23), (96, 9), (12, 23)])
def test_blur(size, kernel):
    x = pictures(10, size, size).float() / 255
    sigma = torch.linspace(0.1, 2.0, 10)
    got = colour.blur(x, sigma, kernel)
    for n in range(10):
        close(got[n], TF.gaussian_blur(x[n], [kernel, kernel], [sigma[n].item()] * 2), 1e-4)


def test_grey_and_solarize():
    x = pictures(4).float() / 255
    close(colour.luma(x), TF.rgb_to_grayscale(x), 1e-5)
    assert torch.equal(colour.solarize(x), TF.solarize(x, 128 / 255))
    levels = torch.tensor([127, 128, 255]).view(1, 3, 1, 1) / 255
    assert (colour.solarize(levels).flatten() * 255).round().tolist() == [127, 127, 0]


def neutral(n):
    """The parameters of one view of n images that leave it as it is."""
    no, zero = torch.zeros(1, n, dtype=torch.bool), torch.zeros(1, n, dtype=torch.float64)
    factors = torch.tensor([1.0, 1, 1, 0], dtype=torch.float64).expand(1, n, 4)
    order = torch.arange(4).expand(1, n, 4)
    return draws.Params(torch.zeros(1, n, 4).long(), no, no, factors, order, no, zero, no)


def coloured(x, params, kernel):
    """Crops (n, C, S, S) of uint8 through the colour operations alone: neither is anything normalised."""
    c, size = x.shape[1], x.shape[-1]
    p = ViewPlan((View(size, colour=Colour(0.4, 0.4, 0.4, 0.1)),), (0.0,) * c, (1.0,) * c)
    return finish(p, [x[None]], torch.arange(len(x)), params, kernel=kernel).groups[0]


@pytest.mark.parametrize("size", [13, 32, 96])
def test_every_operation_alone_replayed_through_torchvision(kernel, size):
    n = 40
    x, same, yes = pictures(n, size, size), neutral(n), torch.ones(1, n, dtype=torch.bool)
    x[0], x[1] = 77, torch.tensor([0, 128, 255])[:, None, None]  # nothing but grey, nothing but one colour
    whole = x.float() / 255
    for operation in range(4):
        f = torch.linspace(-0.5, 0.5, n) if operation == 3 else torch.linspace(0, 2, n)
        factors = same.factors.clone()
        factors[0, :, operation] = f
        got = coloured(x, replace(same, jitter=yes, factors=factors), kernel)
        for i in range(n):
            close(got[i], OPERATIONS[operation](whole[i], f[i].item()), 1e-4)
    close(coloured(x, replace(same, grey=yes), kernel), TF.rgb_to_grayscale(whole, 3), 1e-5)
    close(coloured(x, replace(same, solarize=yes), kernel), TF.solarize(whole, 128 / 255), 1e-5)
    close(coloured(x, same, kernel), whole, 1e-6)
    sigma = torch.linspace(0.1, 2.0, n, dtype=torch.float64)[None]
    got = coloured(x, replace(same, sigma=sigma), kernel)
    for i in range(n):
        close(got[i], TF.gaussian_blur(whole[i], [23, 23], [sigma[0, i].item()] * 2), 1e-4)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_both_kernels_agree_for_any_number_of_channels(channels):
    if reason := compiled.available():
        pytest.skip(reason)
    n, images = 48, torch.randint(0, 256, (48, channels, 40, 40), dtype=torch.uint8)
    p = plan(6, large=40, small=24, look=replace(IMAGENET, mean=(0.4,) * channels, std=(0.3,) * channels))
    params = replace(drawn(p, n, seed=5), solarize=torch.zeros(6, n, dtype=torch.bool))
    for float_images in (images, images.float() / 255):
        one = render(p, float_images, torch.arange(n), params)
        other = render(p, float_images, torch.arange(n), params, kernel="compiled")
        for a, b in zip(one.groups, other.groups, strict=True):
            assert a.shape == b.shape
            assert a.stride() == b.stride()
            close(a * 0.3, b * 0.3, 1e-4)


@pytest.mark.parametrize("look", [CIFAR, IMAGENET])
def test_whole_views_replayed_through_torchvision(look, kernel):
    n, p = 48, plan(6, large=40, small=24, look=look)
    images, params = pictures(n), drawn(p, n, seed=5)
    batch = render(p, images, torch.arange(n), params, kernel=kernel)
    mean, std = torch.tensor(look.mean).view(3, 1, 1), torch.tensor(look.std).view(3, 1, 1)
    checked = 0
    for k, view in enumerate(p.views):
        for i in range(n):
            box = params.boxes[k, i].tolist()
            x = TF.resized_crop(images[i].float() / 255, *box, [view.size] * 2, antialias=True)
            if params.flip[k, i]:
                x = TF.horizontal_flip(x)
            if params.jitter[k, i]:
                for operation in params.order[k, i].tolist():
                    x = OPERATIONS[operation](x, params.factors[k, i, operation].item())
            if params.grey[k, i]:
                x = TF.rgb_to_grayscale(x, 3)
            if params.sigma[k, i] > 0:
                x = TF.gaussian_blur(x, [23, 23], [params.sigma[k, i].item()] * 2)
            got = batch.view(k)[i] * std + mean
            if params.solarize[k, i]:  # two values on both sides of the threshold may solarize apart
                x, clear = TF.solarize(x, 128 / 255), (x - 128 / 255).abs() > 1 / 255
                got, x = got[clear], x[clear]
            close(got, x)
            checked += 1
    assert checked == 6 * n


def test_crop_only_views_neither_flip_nor_change_colour():
    n = 200
    image = torch.zeros(n, 3, 32, 32, dtype=torch.uint8)
    image[..., :, 16:] = torch.tensor([200, 40, 90], dtype=torch.uint8).view(3, 1, 1)  # right half coloured
    p = plan(4, large=32)
    batch = render(p, image, torch.arange(n), drawn(p, n, height=32, width=32))
    mean, std = torch.tensor(p.mean).view(3, 1, 1), torch.tensor(p.std).view(3, 1, 1)
    hue = torch.tensor([200, 40, 90]) / 255
    for k in (2, 3):
        x = batch.view(k) * std + mean
        assert (
            x.mean(dim=(1, 2))[:, -1] >= x.mean(dim=(1, 2))[:, 0] - 1e-5
        ).all()  # never brighter to the left
        level = x / hue.view(3, 1, 1)
        close(level.amax(dim=1), level.amin(dim=1), 2e-3)  # every pixel is the colour times one number
    mirrored = (batch.view(0) * std + mean)[:, 0].mean(dim=1)
    assert (mirrored[:, 0] > mirrored[:, -1] + 0.05).any()


# --- batches --------------------------------------------------------------------------------------------


def test_groups_are_stacked_in_the_order_of_the_plan():
    p = plan(6, large=32, small=20)
    n = 8
    batch = render(p, pictures(n), torch.arange(n), drawn(p, n))
    assert [tuple(g.shape) for g in batch.groups] == [(2 * n, 3, 32, 32), (4 * n, 3, 20, 20)]
    stacked = batch.stack([g.mean(dim=(1, 2, 3)) for g in batch.groups])
    for k in range(6):
        assert torch.allclose(stacked[k], batch.view(k).mean(dim=(1, 2, 3)))
    with pytest.raises(ValueError, match="no view 6"):
        batch.view(6)


class Files:
    """Files in memory as a source of images."""

    channels = 3

    def __init__(self, files):
        self.files = files

    def encoded(self, i):
        return self.files[i]

    def name(self, i):
        return f"file {i}"

    def read(self, i):
        return decode(self.files[i], self.name(i))


def saved(images, kind, **options):
    files = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, kind, **options)
        files.append(file.getvalue())
    return Files(files)


@pytest.mark.parametrize("look", [CIFAR, IMAGENET])
def test_the_path_of_the_workers_gives_the_views_of_the_path_in_memory(look, kernel):
    p = plan(6, large=32, small=20, look=look)
    n, images = 64, pictures(64)
    whole = make(p, images, torch.arange(n), seed=3, epoch=2, kernel=kernel)
    cut = Cutter(saved(images, "PNG"), p, 3)([(2, i) for i in range(n)])
    params = draw(p, cut.samples, cut.sizes, seed=3, epoch=2)
    batch = finish(p, cut.crops, cut.samples, params, kernel=kernel)
    in_memory = drawn(p, n, seed=3, epoch=2)
    for name in draws.Params.__dataclass_fields__:
        assert torch.equal(getattr(params, name), getattr(in_memory, name)), name
    std = torch.tensor(p.std).view(3, 1, 1)
    for k, view in enumerate(p.views):
        kept = ~params.solarize[k]  # two values on both sides of the threshold may solarize apart
        apart = ((whole.view(k) - batch.view(k))[kept] * std * 255).abs()
        if view.colour is None:
            assert apart.max() <= 1.01  # crops are rounded to uint8 on their way
        else:  # strong jitter multiplies that for a few
            assert (apart > 2.5).double().mean() < 2e-3
            assert apart.mean() < 0.5


def test_images_that_are_cut_in_several_goes_are_cut_alike(monkeypatch):
    p, source = plan(4, large=32), saved(pictures(8), "PNG")
    keys = [(0, i) for i in range(8)]
    at_once = Cutter(source, p, 0)(keys)
    monkeypatch.setattr("ecpp.data.crops._HELD", 10_000)
    source.files[3] = b"nothing"
    in_goes = Cutter(source, p, 0)(keys)
    assert list(in_goes.unreadable) == [3]
    kept = torch.tensor([0, 1, 2, 4, 5, 6, 7])
    assert torch.equal(at_once.crops[0][:, kept], in_goes.crops[0][:, kept])


def test_the_error_of_scaled_decoding_is_what_the_documentation_states():
    p = plan(6, large=64, small=32, look=IMAGENET)
    source = saved(pictures(24, 375, 500), "JPEG", quality=90)
    keys = [(0, i) for i in range(24)]
    exact, scaled = Cutter(source, p, 0)(keys), Cutter(source, p, 0, scaled=True)(keys)
    apart = torch.cat(
        [(a.int() - b.int()).abs().flatten() for a, b in zip(exact.crops, scaled.crops, strict=True)]
    )
    assert apart.max() > 0  # it did decode smaller
    assert apart.float().mean() < 1.0
    assert apart.float().square().mean().sqrt() < 1.5
    assert torch.equal(exact.sizes, scaled.sizes)


# --- the kernels ----------------------------------------------------------------------------------------


def test_views_do_not_depend_on_threads_batches_or_autocast(kernel):
    p, images = plan(6, large=40, small=24, look=IMAGENET), pictures(101)
    one = make(p, images, torch.arange(101), seed=1, epoch=0, kernel=kernel)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        other = make(p, images, torch.arange(101), seed=1, epoch=0, kernel=kernel)
    finally:
        torch.set_num_threads(threads)
    with torch.autocast("cpu", torch.bfloat16):
        third = make(p, images, torch.arange(101), seed=1, epoch=0, kernel=kernel)
    alone = make(p, images[7:8], torch.tensor([7]), seed=1, epoch=0, kernel=kernel)
    for k in range(6):
        assert torch.equal(one.view(k), third.view(k))
        close(one.view(k), other.view(k), 0 if kernel == "compiled" else 1e-5)
        close(one.view(k)[7:8], alone.view(k), 1e-4)


def test_an_unknown_kernel_and_a_missing_compiler_say_so(monkeypatch, tmp_path):
    p, images = plan(2, large=32), pictures(2)
    with pytest.raises(ValueError, match="one of torch, compiled"):
        make(p, images, torch.arange(2), seed=0, epoch=0, kernel="numba")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.library.cache_clear()
    try:
        for compiler, said in (("no-such-compiler", "needs a C compiler"), ("false", "failed")):
            monkeypatch.setenv("CC", compiler)
            with pytest.raises(ValueError, match=said):
                make(p, images, torch.arange(2), seed=0, epoch=0, kernel="compiled")
        make(p, images, torch.arange(2), seed=0, epoch=0)  # never needed
    finally:
        compiled.library.cache_clear()


@pytest.mark.slow
def test_the_kernel_is_built_once_by_however_many_processes(tmp_path):
    if reason := compiled.available():
        pytest.skip(reason)
    code = "from ecpp.views import compiled; compiled.library()"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list((tmp_path / "ecpp").iterdir())) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("look", [CIFAR, IMAGENET])
def test_a_gpu_renders_what_a_cpu_renders_and_is_never_waited_for(look):
    p, images, samples = plan(6, large=40, small=24, look=look), pictures(64), torch.arange(64)
    params = replace(drawn(p, 64), solarize=torch.zeros(6, 64, dtype=torch.bool))
    cut = Cutter(saved(images, "PNG"), p, 0)([(0, i) for i in range(64)])
    there, crops = images.cuda(), [c.cuda() for c in cut.crops]
    make(p, there, samples, seed=0, epoch=0)  # libraries are loaded, memory is taken
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        rendered, finished = render(p, there, samples, params), finish(p, crops, samples, params)
        make(p, there, samples, seed=0, epoch=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    std = torch.tensor(p.std).view(3, 1, 1)
    for gpu, cpu in (
        (rendered, render(p, images, samples, params)),
        (finished, finish(p, cut.crops, samples, params)),
    ):
        for k in range(6):
            close(gpu.view(k).cpu() * std, cpu.view(k) * std)
    with pytest.raises(ValueError, match="CPUs only"):
        make(p, there, samples, seed=0, epoch=0, kernel="compiled")


def test_float_images_render_like_uint8_ones():
    p, images = plan(4, large=32), pictures(8)
    params = drawn(p, 8)
    a = render(p, images, torch.arange(8), params)
    b = render(p, images.float() / 255, torch.arange(8), params)
    torch.testing.assert_close(a.groups[0], b.groups[0], atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="one sample index each"):
        render(p, images, torch.arange(7), params)
