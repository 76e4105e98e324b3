"""From bytes to pixels: every kind of file that people have, and bytes that are no image at all."""

import io
import math

import numpy as np
import pytest
import tifffile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import as_pil, picture
from PIL import Image

from ecpp.data.decode import Encoded, decode
from ecpp.data.unreadable import Unreadable


def coded(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def read(data, **options):
    return decode(data, "x", **options)


def reason(data, **options):
    with pytest.raises(Unreadable, match="cannot read the image x: ") as e:
        read(data, **options)
    assert "\n" not in str(e.value)
    return e.value.reason


def smooth(height=16, width=24):
    """A picture that compression changes little."""
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[0] = torch.linspace(0, 250, width)
    image[1] = torch.linspace(0, 250, height)[:, None]
    return image


def tiff(array, **options):
    out = io.BytesIO()
    tifffile.imwrite(out, array, **options)
    return out.getvalue()


# --- colours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_every_colour_mode_becomes_rgb(mode):
    rgb = as_pil(picture(9, 7))
    image = rgb.quantize(256) if mode == "P" else rgb.convert(mode)
    got = read(coded(image, "TIFF" if mode == "CMYK" else "PNG"))
    assert got.shape == (3, 9, 7)
    assert got.dtype == torch.uint8
    if mode in ("RGBA", "P", "CMYK"):
        assert (got.int() - picture(9, 7)).abs().max() <= (0 if mode != "P" else 60)
    else:
        assert torch.equal(got, got[:1].expand(3, -1, -1))
        assert np.array_equal(got[0].numpy(), np.asarray(image.convert("L")))


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF"])
def test_what_is_transparent_lies_on_white(form):
    colour, alpha = picture(9, 7, seed=1), picture(9, 7, seed=2)[:1]
    rgba = np.concatenate([colour, alpha]).transpose(1, 2, 0)
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    got = read(coded(Image.fromarray(rgba), form, **options))
    share = alpha.double() / 255
    expected = colour.double() * share + 255 * (1 - share)
    assert (got.double() - expected).abs().max() <= 1


def test_transparency_of_palettes_and_of_single_colours_lies_on_white():
    palette = Image.fromarray(np.array([[0, 1, 2]], dtype=np.uint8))
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    palette = palette.copy()
    for form in ("PNG", "GIF"):
        got = read(coded(palette, form, transparency=1))
        assert got[:, 0].T.tolist() == [[10, 20, 30], [255, 255, 255], [70, 80, 90]]
    rgb = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8))
    assert read(coded(rgb, "PNG", transparency=(4, 5, 6)))[:, 0].T.tolist() == [[1, 2, 3], [255] * 3]
    grey = Image.fromarray(np.array([[7, 8]], dtype=np.uint8))
    assert read(coded(grey, "PNG", transparency=7))[:, 0].T.tolist() == [[255] * 3, [8] * 3]
    wide = Image.fromarray(np.array([[1000, 65535, 2570]], dtype=np.uint16))
    assert read(coded(wide, "PNG", transparency=1000))[0].tolist() == [[255, 255, 10]]
    assert read(coded(wide, "PNG", transparency=1000), channels=1).tolist() == [[[255, 255, 10]]]


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_of_grey_keep_their_range(form):
    values = torch.linspace(0, 65535, 100).round().to(torch.int32).view(10, 10)
    data = coded(Image.fromarray(values.numpy().astype(np.uint16)), form)
    expected = (values / 257).round().to(torch.uint8)
    assert torch.equal(read(data), expected.expand(3, 10, 10))
    assert torch.equal(read(data, channels=1), expected[None])


def test_values_without_a_known_range_are_refused():
    floats = Image.fromarray(np.random.default_rng(0).random((4, 4)).astype(np.float32))
    assert "floating-point values" in reason(coded(floats, "TIFF"))
    wide = Image.fromarray(np.array([[0, 70_000]], dtype=np.int32))
    assert "from 0 to 70000" in reason(coded(wide, "TIFF"))


def test_a_cmyk_jpeg_is_not_inverted():
    image = as_pil(smooth()).convert("CMYK")
    got = read(coded(image, "JPEG", quality=98, subsampling=0))
    assert (got.int() - smooth().int()).abs().max() < 12


def test_the_first_frame_counts():
    frames = [as_pil(picture(8, 8, seed=i)).quantize(256) for i in range(3)]
    got = read(coded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert np.array_equal(got.permute(1, 2, 0).numpy(), np.asarray(frames[0].convert("RGB")))
    frames = [as_pil(picture(8, 8, seed=i)) for i in range(3)]
    data = coded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert torch.equal(read(data), picture(8, 8, seed=0))
    data = coded(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    assert torch.equal(read(data), picture(8, 8, seed=0))


@pytest.mark.parametrize(
    ("orientation", "stored"),
    [
        (2, "FLIP_LEFT_RIGHT"), (3, "ROTATE_180"), (4, "FLIP_TOP_BOTTOM"), (5, "TRANSPOSE"),
        (6, "ROTATE_90"), (7, "TRANSVERSE"), (8, "ROTATE_270"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_photograph_is_upright(orientation, stored, form):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 98, "subsampling": 0} if form == "JPEG" else {}
    data = coded(as_pil(smooth()).transpose(Image.Transpose[stored]), form, exif=exif, **options)
    got = read(data)
    assert got.shape == (3, 16, 24)
    assert Encoded(data, "x").size == (16, 24)
    assert (got.int() - smooth().int()).abs().max() < 12


@pytest.mark.parametrize(("height", "width"), [(1, 300), (300, 1), (1, 1), (1, 20_000)])
def test_images_as_thin_as_can_be(height, width):
    image = picture(height, width)
    assert torch.equal(read(coded(as_pil(image), "PNG")), image)
    assert read(coded(as_pil(image), "JPEG")).shape == image.shape


# --- channels -------------------------------------------------------------------------------------------


def test_grey_is_what_pil_calls_grey():
    image = as_pil(picture(9, 7))
    for form in ("PNG", "BMP", "WEBP"):
        data = coded(image, form, **({"lossless": True} if form == "WEBP" else {}))
        assert np.array_equal(read(data, channels=1)[0].numpy(), np.asarray(image.convert("L")))
    for mode in ("L", "RGB"):
        data = coded(as_pil(smooth()).convert(mode), "JPEG", quality=98)
        with Image.open(io.BytesIO(data)) as opened:
            expected = torch.from_numpy(np.array(opened.convert("L")).astype(np.int32))
        got = read(data, channels=1)
        assert got.shape == (1, 16, 24)
        assert (got[0].int() - expected).abs().max() <= 2


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_tiff_of_many_channels_is_its_values(kind, planar, compression):
    values = np.random.default_rng(0).integers(0, np.iinfo(kind).max, (5, 12, 10), dtype=kind, endpoint=True)
    stored = values if planar == "separate" else np.ascontiguousarray(values.transpose(1, 2, 0))
    data = tiff(stored, photometric="minisblack", planarconfig=planar, compression=compression)
    expected = values if kind == np.uint8 else np.round(values / 257).astype(np.uint8)
    got = read(data, channels=5)
    assert np.array_equal(got.numpy(), expected)
    assert Encoded(data, "x", channels=5).size == (12, 10)
    assert "it has 5 channels, but 4 were asked for" in reason(data, channels=4)


def test_a_tiff_of_one_page_for_each_channel():
    values = np.random.default_rng(0).integers(0, 255, (7, 12, 10), dtype=np.uint8)
    data = tiff(values, photometric="minisblack")
    assert np.array_equal(read(data, channels=7).numpy(), values)


def test_four_channels_of_a_png_are_kept():
    rgba = np.concatenate([picture(9, 7, seed=1), picture(9, 7, seed=2)[:1]])
    data = coded(Image.fromarray(rgba.transpose(1, 2, 0)), "PNG")
    assert np.array_equal(read(data, channels=4).numpy(), rgba)
    assert "it has 3 channels (RGB), but 4 were asked for" in reason(
        coded(as_pil(picture()), "PNG"), channels=4
    )


def test_what_a_tiff_of_many_channels_must_not_be():
    def wrong(array, channels=5, **options):
        return reason(tiff(array, photometric="minisblack", **options), channels=channels)

    assert "its values are float32" in wrong(np.zeros((5, 4, 4), np.float32), planarconfig="separate")
    assert "its values are int16" in wrong(np.zeros((5, 4, 4), np.int16), planarconfig="separate")
    assert "its axes are YX" in wrong(np.zeros((4, 4), np.uint8))
    assert "its axes are " in wrong(np.zeros((2, 5, 4, 4), np.uint8))


# --- damage ---------------------------------------------------------------------------------------------


def test_the_reasons_are_told_apart():
    good = coded(as_pil(picture(40, 40)), "PNG")
    assert reason(b"") == "the file is empty"
    assert reason(b"these are words") == "its bytes are no image of a known kind"
    assert "truncated" in reason(good[: len(good) // 2])
    assert "truncated" in reason(coded(as_pil(picture(40, 40)), "JPEG")[:-200])
    assert "truncated" in reason(coded(as_pil(picture(40, 40)), "JPEG", progressive=True)[:-200])


def test_formats_that_run_programs_or_take_any_bytes_are_no_images():
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n"
    assert reason(postscript) == "its bytes are no image of a known kind"
    assert reason(coded(as_pil(picture()), "TGA")) == "its bytes are no image of a known kind"


def test_decompression_bombs_are_refused(monkeypatch):
    enormous = coded(Image.new("1", (20_000, 20_000)), "PNG")
    assert len(enormous) < 100_000
    assert "unpacks to more than 89,478,485 pixels" in reason(enormous)
    many = tiff(np.zeros((5, 20, 30), np.uint8), photometric="minisblack", compression="zlib")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)  # PIL itself only warns up to twice as many
    assert "unpacks to more than 599 pixels" in reason(many, channels=5)
    assert "unpacks to more than 599 pixels" in reason(coded(as_pil(picture(20, 30)), "JPEG"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    assert read(many, channels=5).shape == (5, 20, 30)
    assert read(coded(as_pil(picture(20, 30)), "JPEG")).shape == (3, 20, 30)


def examples():
    """Small files of every kind that is read, by the channels they are asked for."""
    image, exif = as_pil(picture(20, 26)), Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a word"
    wide = Image.fromarray((np.arange(520).reshape(20, 26) * 100).astype(np.uint16))
    plain = [coded(image, f) for f in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000")]
    plain += [coded(image, "JPEG", progressive=True), coded(image.convert("CMYK"), "JPEG")]
    plain += [coded(image, f, exif=exif) for f in ("JPEG", "PNG", "WEBP")]
    plain += [coded(image.convert(m), "PNG") for m in ("RGBA", "LA", "1", "P")]
    plain += [coded(image, f, save_all=True, append_images=[image.rotate(90)]) for f in ("GIF", "WEBP")]
    plain += [coded(image, "TIFF", compression=c) for c in ("tiff_lzw", "tiff_deflate", "jpeg", "packbits")]
    plain += [coded(image.quantize(9), "PNG", transparency=3), coded(wide, "PNG"), coded(wide, "TIFF")]
    bands = np.random.default_rng(0).integers(0, 65535, (5, 20, 26), dtype=np.uint16)
    many = [tiff(bands, photometric="minisblack", compression=c) for c in (None, "zlib")]
    return [(data, c) for data in plain for c in (3, 1)] + [(data, 5) for data in many]


EXAMPLES = examples()


def only_unreadable(data, channels):
    """Whether the bytes are an image; every other end than those two is an error of the test."""
    try:
        image = read(data, channels=channels)
    except Unreadable as e:
        return bool(e.reason) and e.name == "x"
    return image.dtype == torch.uint8 and image.ndim == 3 and len(image) == channels and 0 not in image.shape


@given(st.binary(max_size=400), st.sampled_from([1, 3, 5]))
def test_random_bytes_are_unreadable(data, channels):
    assert only_unreadable(data, channels)


@given(
    st.sampled_from([data[:24] for data, _ in EXAMPLES]), st.binary(max_size=400), st.sampled_from([1, 3, 5])
)
def test_random_bytes_behind_a_true_beginning_are_unreadable(start, data, channels):
    assert only_unreadable(start + data, channels)


changes = st.tuples(
    st.sampled_from(["put", "flip", "cut", "insert", "ones", "zeros"]),
    st.one_of(st.integers(0, 100), st.integers(0, 4000)),
    st.integers(0, 255),
)


def damaged(data, steps):
    data = bytearray(data)
    for kind, place, value in steps:
        place %= max(1, len(data))
        if kind == "put":
            data[place : place + 1] = bytes([value])
        elif kind == "flip":
            data[place : place + 1] = bytes(b ^ (1 << value % 8) for b in data[place : place + 1])
        elif kind == "cut":
            del data[place : place + value % 30]
        elif kind == "insert":
            data[place:place] = data[value : value + 20]
        else:
            data[place : place + 4] = (b"\xff" if kind == "ones" else b"\0") * 4
    return bytes(data)


@settings(max_examples=300)
@given(st.sampled_from(EXAMPLES), st.lists(changes, min_size=1, max_size=6))
def test_damaged_files_are_read_or_unreadable(example, steps):
    data, channels = example
    # A damaged header may ask for much memory, which is granted up to the limit; here the limit is low.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
        assert only_unreadable(damaged(data, steps), channels)


# --- scaled ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize(("height", "width"), [(64, 96), (65, 97), (121, 63)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_is_reduced_by_its_factor_and_averages_its_pixels(factor, height, width, mode):
    full = smooth(height, width)
    data = coded(as_pil(full).convert(mode), "JPEG", quality=95, subsampling=0)
    got = Encoded(data, "x").decode(factor)
    assert got.shape == (3, math.ceil(height / factor), math.ceil(width / factor))
    whole = Encoded(data, "x").decode()
    area = torch.nn.functional.avg_pool2d(whole.float(), factor)
    h, w = area.shape[1:]
    assert (got[:, :h, :w].float() - area).abs().max() < 6


def test_only_jpegs_are_reduced():
    for form in ("PNG", "WEBP", "TIFF"):
        assert Encoded(coded(as_pil(picture(64, 64)), form), "x").decode(4).shape == (3, 64, 64)
