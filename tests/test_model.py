import copy
import math

import pytest
import timm
import torch
from torch import nn

from ecpp.model import Momentum, create_encoder, mlp, probe
from ecpp.model.momentum import ema_tau
from ecpp.model.resnet import LAYERS


def images(n=2, size=32, channels=3, seed=0):
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(seed))


def before_pooling(encoder, x):
    """The shape that the last stage gives to the pooling."""
    shapes = []
    hook = encoder.layer4.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape)))
    with torch.no_grad():
        encoder.eval()(x)
    hook.remove()
    return shapes[0]


# --- ResNets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "width", "features"), [
    ("resnet10", 16, 128), ("resnet18", 32, 256), ("resnet50", 8, 256), ("resnet10", None, 512), ("resnet18", 5, 40),
])  # fmt: skip
def test_a_resnet_is_as_wide_as_asked_and_keeps_small_images_large(name, width, features):
    encoder = create_encoder(name, size=32, width=width)
    assert encoder.num_features == features
    assert before_pooling(encoder, images()) == (2, features, 4, 4)
    assert encoder(images()).shape == (2, features)
    assert probe(encoder, [32]) == features


def test_the_stem_follows_the_size_unless_it_is_named():
    for size, small_stem, side in (
        (64, None, 8),
        (65, None, 2),
        (224, None, 2),
        (32, False, 2),
        (224, True, 8),
    ):
        encoder = create_encoder("resnet10", size=size, width=4, small_stem=small_stem)
        assert before_pooling(encoder, images(size=64)) == (2, 32, side, side)


def test_the_depth_is_that_of_the_name():
    blocks = {"resnet10": 4, "resnet18": 8, "resnet34": 16, "resnet50": 16, "resnet101": 33}
    assert set(blocks) == set(LAYERS)
    with torch.device("meta"):
        for name, expected in blocks.items():
            encoder = create_encoder(name, size=32)
            assert sum(len(encoder.get_submodule(f"layer{i}")) for i in (1, 2, 3, 4)) == expected


def test_an_encoder_takes_any_number_of_channels():
    encoder = create_encoder("resnet10", size=32, width=4, channels=1)
    assert probe(encoder, [32], channels=1) == 32
    with pytest.raises(ValueError, match="views of 32 px"):
        probe(encoder, [32], channels=3)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101"])
def test_the_parameters_carry_timms_names(name):
    with torch.device("meta"):
        ours, theirs = create_encoder(name, size=224), timm.create_model(name, num_classes=0)
    shapes = [{k: (v.shape, v.dtype) for k, v in net.state_dict().items()} for net in (ours, theirs)]
    assert shapes[0] == shapes[1]
    assert ours.num_features == theirs.num_features


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_timm_computes_the_same_features_from_our_weights(name):
    torch.manual_seed(0)
    ours = create_encoder(name, size=224)
    for m in ours.modules():  # an untrained BatchNorm would hide which weights are where
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.3, 0.6)
            nn.init.normal_(m.bias, std=0.1)
            nn.init.normal_(m.running_mean, std=0.1)
            nn.init.uniform_(m.running_var, 0.5, 2)
    theirs = timm.create_model(name, num_classes=0)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = images(size=80)
    with torch.no_grad():
        got, expected = ours.eval()(x), theirs.eval()(x)
    assert expected.std() > 1e-3
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


# --- encoders by name -----------------------------------------------------------------------------------


def test_an_unknown_encoder_is_told_its_neighbours():
    with pytest.raises(ValueError, match="no encoder 'resnt18' in ecpp or timm; near: resnet18, ") as e:
        create_encoder("resnt18", size=32)
    near = str(e.value).split("near: ")[1].split(", ")
    assert len(near) == len(set(near)) == 3
    with pytest.raises(ValueError, match="near: none"):
        create_encoder("zzzzqqqq", size=32)


def test_what_a_resnet_alone_can_do_is_refused_to_others():
    for options in ({"width": 8}, {"small_stem": True}):
        with pytest.raises(ValueError, match=r"resnet10, .* not for 'vit_tiny_patch16_224'"):
            create_encoder("vit_tiny_patch16_224", size=64, **options)
    with pytest.raises(ValueError, match="at least 1, but is 0"):
        create_encoder("resnet18", size=32, width=0)


def test_timm_builds_what_we_do_not():
    encoder = create_encoder("mobilenetv3_small_050", size=64, channels=1, small_stem=False)
    width = probe(encoder, [64, 32], channels=1)
    assert encoder.eval()(images(3, 48, channels=1)).shape == (3, width)


def test_a_vit_takes_views_of_two_sizes():
    torch.manual_seed(0)
    encoder = create_encoder("vit_tiny_patch16_224", size=64)
    assert encoder.patch_embed.grid_size == (4, 4)  # made for 64 px, stretched for others
    assert probe(encoder, [64, 32]) == encoder.num_features == 192
    with torch.no_grad():
        assert not torch.allclose(encoder(images(size=64)), encoder(images(size=64, seed=1)))
    with pytest.raises(ValueError, match=r"views of 40 px \(.*\): choose another size"):
        probe(encoder, [64, 40])


# --- the probe ------------------------------------------------------------------------------------------


class Picky(nn.Module):
    """Takes 16 px and more."""

    def __init__(self, error=None):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.error = error

    def forward(self, x):
        if x.shape[-1] < 16:
            raise self.error or RuntimeError("too small")
        return self.net(x)


@pytest.mark.parametrize("training", [True, False])
def test_the_probe_leaves_an_encoder_as_it_was(training):
    encoder = Picky().train(training)
    before = copy.deepcopy(encoder.state_dict())
    assert probe(encoder, [32, 16]) == 4
    with pytest.raises(ValueError, match="8 px"):
        probe(encoder, [32, 8])
    assert all(m.training is training for m in encoder.modules())
    assert all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())
    assert all(p.grad is None for p in encoder.parameters())


@pytest.mark.parametrize(("error", "reason"), [
    (RuntimeError("too small:\nsee the stack below"), "too small:"),
    (ValueError("x" * 500), "x" * 200),
    (AssertionError(), "AssertionError"),
    (IndexError("no row 3"), "no row 3"),
    (ZeroDivisionError("division by zero"), "division by zero"),
])  # fmt: skip
def test_the_probe_says_in_one_sentence_what_fails(error, reason):
    with pytest.raises(ValueError) as e:
        probe(Picky(error), [16, 8])
    assert str(e.value) == f"the encoder cannot take views of 8 px ({reason}): choose another size"
    assert e.value.__cause__ is error


def test_the_probe_wants_one_vector_per_image():
    encoder = nn.Conv2d(3, 4, 3).train()
    with pytest.raises(ValueError, match=r"one vector per image, \(B, D\), but returned \(2, 4, 30, 30\)"):
        probe(encoder, [32])
    assert encoder.training


# --- heads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("final_bn", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_head_is_linear_bn_relu_and_a_last_linear(layers, final_bn):
    head = mlp(5, 7, 3, layers=layers, final_bn=final_bn)
    linear = [m for m in head if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(5, 3)] if layers == 1 else [
        (5, 7), *[(7, 7)] * (layers - 2), (7, 3),
    ]  # fmt: skip
    kinds = [nn.Linear, nn.BatchNorm1d, nn.ReLU] * (layers - 1) + [nn.Linear] + [nn.BatchNorm1d] * final_bn
    assert [type(m) for m in head] == kinds
    # No bias where a BatchNorm would subtract it again.
    assert [m.bias is not None for m in linear] == [False] * (layers - 1) + [not final_bn]
    out = head(torch.randn(64, 5))
    assert out.shape == (64, 3)
    assert out.min() < 0 < out.max()
    if final_bn:
        assert torch.allclose(out.mean(dim=0), torch.zeros(3), atol=1e-5)


def test_a_head_without_layers_is_refused():
    with pytest.raises(ValueError, match="layers=0"):
        mlp(5, 7, 3, layers=0, final_bn=True)


# --- the target -----------------------------------------------------------------------------------------


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def randomise(module, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=g))


def test_a_target_starts_as_a_copy_and_gets_no_gradient():
    online = network()
    target = Momentum(online)
    x = torch.randn(8, 4, requires_grad=True)
    got = target(x)
    assert torch.equal(got, online(x))
    assert not got.requires_grad
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in online.parameters())
    own = {p.data_ptr() for p in target.parameters()}
    assert own.isdisjoint(p.data_ptr() for p in online.parameters())


@pytest.mark.parametrize("tau", [0.0, 0.9, 0.996, 1.0])
def test_an_update_goes_its_share_of_the_way(tau):
    online = network()
    target = Momentum(online)
    randomise(online, seed=1)
    before = [p.clone() for p in target.parameters()]
    version = [p._version for p in online.parameters()]
    target.update(online, tau)
    for old, new, goal in zip(before, target.parameters(), online.parameters(), strict=True):
        assert torch.allclose(new, tau * old + (1 - tau) * goal, rtol=1e-6, atol=1e-6)
        assert torch.equal(new, torch.lerp(old, goal, 1 - tau))
    assert [p._version for p in online.parameters()] == version


def test_the_statistics_of_a_target_are_its_own():
    online = network()
    target = Momentum(online)
    randomise(online, seed=1)
    online(torch.randn(16, 4))
    target.update(online, 0.5)
    assert torch.equal(target.network[1].running_mean, torch.zeros(6))
    assert target.network[1].num_batches_tracked == 0
    target(torch.randn(16, 4) + 3)
    assert target.network[1].num_batches_tracked == 1
    assert not torch.allclose(target.network[1].running_mean, online[1].running_mean)


def test_a_target_may_have_nothing_to_learn():
    target = Momentum(nn.Identity())
    target.update(nn.Identity(), 0.9)
    assert torch.equal(target(torch.ones(2)), torch.ones(2))


def test_tau_rises_from_its_base_to_one():
    for base in (0.0, 0.9, 0.996):
        assert ema_tau(base, 0.0) == pytest.approx(base)
        assert ema_tau(base, 1.0) == 1.0
        assert ema_tau(base, 0.5) == pytest.approx((1 + base) / 2)
        assert ema_tau(base, 1 / 3) == pytest.approx(1 - (1 - base) * (math.cos(math.pi / 3) + 1) / 2)
        values = [ema_tau(base, i / 50) for i in range(51)]
        assert values == sorted(values)
