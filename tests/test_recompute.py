import copy

import pytest
import timm
import torch
from torch import nn

from ecpp.model.recompute import recompute_blocks
from ecpp.model.resnet import ResNet


@pytest.mark.parametrize("name", ["resnet10", "vit_tiny_patch16_224"])
def test_what_is_computed_again_is_the_same(name):
    torch.manual_seed(0)
    if name == "resnet10":
        plain, x = ResNet(name, width=4, small_stem=True), torch.randn(6, 3, 16, 16)
    else:
        plain, x = (
            timm.create_model(name, num_classes=0, img_size=32, drop_path_rate=0.5),
            torch.randn(6, 3, 32, 32),
        )
    again = copy.deepcopy(plain)
    assert recompute_blocks(again) >= 4
    kept = []
    for net in (plain, again):
        saved = []
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t
        ):
            out = net(x)
        out.square().sum().backward()
        kept.append(sum(saved))
    assert kept[1] < kept[0] / 2
    for a, b in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(plain.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_an_encoder_without_blocks_is_named():
    with pytest.raises(ValueError, match="sequence of blocks"):
        recompute_blocks(nn.Conv2d(3, 4, 3))
