"""Which sample when, as rendered batches: in memory, by workers and by ranks."""

from dataclasses import fields, replace
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pictures import Pictures, fill, picture, save

from ecpp.data import Stream
from ecpp.data.decode import Encoded
from ecpp.data.folder import Folder
from ecpp.views import ViewPlan, draw, finish, plan, render
from ecpp.views.render import crop_views, empty_crops

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


WAYS = [(0, 1), (1, 1), (2, 1), (0, 2), (2, 2)]  # workers, ranks


@pytest.mark.parametrize(("workers", "world"), WAYS)
def test_memory_files_workers_and_ranks_show_the_same_views(workers, world, monkeypatch):
    """The same boxes and parameters everywhere; equal bits among workers; pixels of files as near as bytes are."""
    plain = ViewPlan(PLAN.views, mean=(0.0,) * 3, std=(1.0,) * 3)
    drawn = {True: [], False: []}

    def batches(memory, ranks, **options):
        def noted(*args, **kwargs):
            params = draw(*args, **kwargs)
            drawn[memory].append(params)
            return params

        for name in ("ecpp.data.stream", "ecpp.views.render"):
            monkeypatch.setattr(import_module(name), "draw", noted)
        parts = [
            Stream(small_images(memory), plain, batch_size=6, seed=0, rank=r, world=ranks, **options).batches(
                0, 4
            )
            for r in range(ranks)
        ]
        return [list(part) for part in zip(*parts, strict=True)]

    ram, one = batches(True, 1), batches(False, 1)
    assert_equal_params(drawn[True], drawn[False])
    drawn[False].clear()
    files = batches(False, world, workers=workers)
    if world == 1:
        assert_equal_params(drawn[True], drawn[False])
    for (a,), (b,), parts in zip(ram, one, files, strict=True):
        assert torch.equal(a.samples, torch.cat([p.samples for p in parts]))
        for k in range(PLAN.k):
            got = torch.cat([p.view(k) for p in parts])
            assert torch.equal(got, b.view(k)) if world == 1 else torch.allclose(got, b.view(k), atol=1e-5)
            away = (a.view(k) - got).abs() * 255
            if plain.views[k].colour is None:
                assert away.max() < 1.5
            else:  # colour magnifies the rounding of a file's crops, of few pixels by more than 2.5
                assert away.mean() < 0.5
                assert (away > 2.5).double().mean() < 5e-3
                assert away.max() < 6


def assert_equal_params(one, other):
    for a, b in zip(one, other, strict=True):
        for field in fields(a):
            assert torch.equal(getattr(a, field.name), getattr(b, field.name))


@pytest.mark.parametrize("workers", [0, 2])
def test_scaled_decoding_shows_the_same_views_within_its_error(tmp_path, workers):
    """Same boxes; smooth pictures as JPEG, 4 of 255 in the mean of a view and 24 at the most."""
    for i in range(6):
        small = picture(6, 7, seed=i)[None].float()
        large = F.interpolate(small, (300 + 9 * i, 400), mode="bicubic")[0].clamp(0, 255).to(torch.uint8)
        save(tmp_path / f"{i}.jpg", large, quality=92)
    views = plan(4, large=32, small=16)
    crops = ViewPlan(tuple(replace(v, colour=None) for v in views.views), mean=(0.0,) * 3, std=(1.0,) * 3)
    decoded = []
    real = Encoded.decode

    def noted(self, factor=1):
        decoded.append(factor)
        return real(self, factor)

    images = Folder(tmp_path)
    full = list(Stream(images, crops, batch_size=6, seed=0).batches(0, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoded, "decode", noted)
        quick = list(Stream(images, crops, batch_size=6, seed=0, scaled=True, workers=workers).batches(0, 3))
    if not workers:
        assert {4, 8} <= set(decoded)  # it does what it says
    for a, b in zip(full, quick, strict=True):
        assert torch.equal(a.samples, b.samples)
        for k in range(4):
            away = (a.view(k) - b.view(k)).abs() * 255
            assert away.mean() < 4
            assert away.max() < 24


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
    failed = torch.tensor([False, True, False, False])  # the last one: whether to end
    s = Stream(images, PLAN, batch_size=6, seed=0, world=2, agree=lambda mine: mine | failed)
    (batch,) = s.batches(0, 1)
    assert batch.samples.tolist() == s.samples(0)[[0, 2]].tolist()


def test_ranks_end_together_when_one_has_met_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("ecpp.data.stream.FEW", 1)
    images = broken_folder(tmp_path, bad=(1, 2, 4), count=12)
    words = {}

    def one(mine):
        words[0] = mine
        return mine

    asking = Stream(images, PLAN, batch_size=12, seed=0, world=2, rank=0, agree=one, max_unreadable=0.0)
    other = Stream(images, PLAN, batch_size=12, seed=0, world=2, rank=1, agree=lambda m: m | words[0])
    mine = asking.samples(0).tolist()
    failing = [images.name(i) in ("1.png", "2.png", "4.png") for i in mine]
    assert sum(failing) >= 2  # with this seed
    with pytest.raises(ValueError, match=r"no more than 1 are borne \(this is what rank 0 of 2 met\)"):
        next(asking.batches(0, 1))
    assert words[0].tolist() == [*failing, True]
    with pytest.raises(ValueError, match="rank 1 of 2"):
        next(other.batches(0, 1))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_started_in_any_way_give_the_same_views(tmp_path, method):
    images = broken_folder(tmp_path, bad=())
    alone = list(Stream(images, PLAN, batch_size=3, seed=0).batches(0, 4))
    s = Stream(images, PLAN, batch_size=3, seed=0, workers=2, start_method=method)
    assert_same_batches(list(s.batches(0, 4)), alone)
