"""Batches in parts against whole ones."""

import copy

import pytest
import torch
from ranks import on_ranks
from torch import nn

from ecpp import distributed
from ecpp.method import METHODS
from ecpp.train import Guard
from ecpp.train.parts import backward, backward_in_micro_batches, some_images
from ecpp.views import ViewBatch

N = 12
GUARD = Guard(torch.device("cpu"))


def without_batchnorm(name):
    """A method whose images meet in the loss alone."""
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)
    )
    kind = METHODS[name].load()
    heads = kind.heads(8, 4, 2)
    for head in heads.values():
        for i, layer in enumerate(head):
            if isinstance(layer, nn.BatchNorm1d):
                head[i] = nn.Identity()
    return kind(encoder, **heads).double().train()


def batch_of(rank=0, world=1):
    g = torch.Generator().manual_seed(1)
    share = slice(rank * N // world, (rank + 1) * N // world)
    groups = [
        torch.randn(v, N, 3, s, s, generator=g, dtype=torch.float64)[:, share].flatten(0, 1)
        for v, s in ((2, 8), (2, 6))
    ]
    return ViewBatch(tuple(groups), ((0, 1), (2, 3)), torch.arange(N)[share])


def gradients(method):
    return {n: p.grad.clone() for n, p in method.named_parameters() if p.grad is not None}


def same(a, b):
    assert a.keys() == b.keys()
    scale = max(float(g.norm()) for g in a.values())
    for n in a:
        assert float((a[n] - b[n]).norm()) < 1e-10 * scale, n


def eval_dropout(method):
    """Other parts would draw other masks; that masks come again is tested apart."""
    for m in method.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [4, 5])
def test_micro_batches_give_the_gradient_of_the_whole_batch(name, size):
    whole = without_batchnorm(name)
    eval_dropout(whole)
    parted = copy.deepcopy(whole)
    a = backward(whole, batch_of(), GUARD)
    b = backward_in_micro_batches(parted, batch_of(), GUARD, size)
    torch.testing.assert_close(a.loss, b.loss)
    same(gradients(whole), gradients(parted))
    torch.testing.assert_close(a.metrics, b.metrics)


def test_the_second_pass_draws_the_dropout_of_the_first():
    method = without_batchnorm("simclr")
    torch.manual_seed(3)
    backward_in_micro_batches(method, batch_of(), GUARD, 4)
    torch.manual_seed(3)
    z = torch.cat([method.embeddings(some_images(batch_of(), i, i + 4))[0] for i in (0, 4, 8)], dim=1)
    expected = torch.autograd.grad(
        method.compare(batch_of(), z, diagnose=False).loss, list(method.parameters())
    )
    for p, g in zip(method.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)


def test_batchnorm_remembers_every_part_once():
    torch.manual_seed(0)
    kind = METHODS["simclr"].load()
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    method = kind(encoder, **kind.heads(8, 4, 2)).double().train()
    plain = copy.deepcopy(method)
    backward_in_micro_batches(method, batch_of(), GUARD, 4)
    for i in (0, 4, 8):
        plain.embeddings(some_images(batch_of(), i, i + 4))
    for a, b in zip(method.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["byol", "simsiam"])
def test_parts_are_exact_where_images_do_not_meet_in_the_loss(name):
    whole = without_batchnorm(name)
    eval_dropout(whole)
    parted = copy.deepcopy(whole)
    a, b = backward(whole, batch_of(), GUARD), backward(parted, batch_of(), GUARD, 3)
    torch.testing.assert_close(a.loss, b.loss)
    same(gradients(whole), gradients(parted))


def test_parts_of_a_contrastive_batch_have_the_negatives_of_a_part():
    parted, by_hand = without_batchnorm("simclr"), without_batchnorm("simclr")
    eval_dropout(parted)
    eval_dropout(by_hand)
    step = backward(parted, batch_of(), GUARD, 3)
    losses = [by_hand(some_images(batch_of(), i, i + 4)).loss for i in (0, 4, 8)]
    mean = torch.stack(losses).mean()
    mean.backward()
    torch.testing.assert_close(step.loss, mean.detach())
    same(gradients(by_hand), gradients(parted))


def on_a_rank(name, how):
    method = without_batchnorm(name)
    eval_dropout(method)
    batch = batch_of(distributed.rank(), distributed.world())
    if how == "micro":
        backward_in_micro_batches(method, batch, GUARD, 4)
    else:
        backward(distributed.wrap(method), batch, GUARD, 2)
    return gradients(method)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["micro", "accumulate"])
@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_parts_on_two_ranks(name, how):
    if (name, how) == ("simclr", "accumulate"):
        pytest.skip("other negatives")
    alone = without_batchnorm(name)
    eval_dropout(alone)
    backward(alone, batch_of(), GUARD)
    for theirs in on_ranks(2, on_a_rank, name, how):
        same(gradients(alone), theirs)
