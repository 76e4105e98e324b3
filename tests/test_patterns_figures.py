"""The two figures of the dataset's difficulty: what a random encoder knows, what a trained one learns."""

import pytest
import torch
from torch import nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, relu

from ecpp.data.patterns import labels, render

TRAIN, TEST, SEED = range(5000), range(2**20, 2**20 + 2000), 11


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        skip = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
        self.skip = nn.Identity() if i == o else skip

    def forward(self, x):
        h = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(h + self.skip(x))


def resnet10(w=16):
    stem = nn.Conv2d(3, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU()
    stages = Block(w, w, 1), Block(w, 2 * w, 2), Block(2 * w, 4 * w, 2), Block(4 * w, 8 * w, 2)
    net = nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return net.to(memory_format=torch.channels_last)


def load(indices):
    mean = torch.tensor((0.4914, 0.4822, 0.4465))[:, None, None]
    std = torch.tensor((0.2023, 0.1994, 0.2010))[:, None, None]
    x = (render(indices, seed=SEED).float() / 255 - mean) / std
    return x.contiguous(memory_format=torch.channels_last), labels(indices, SEED)


def features(net, x):
    net.eval()
    with torch.no_grad():
        return torch.cat([net(part) for part in x.split(250)])


def crop_and_flip(x):
    n = len(x)
    side = (torch.rand(n) * 0.5 + 0.5).sqrt()
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = side * torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    theta[:, 1, 1] = side
    theta[:, :, 2] = (torch.rand(n, 2) * 2 - 1) * (1 - side[:, None])
    return grid_sample(x, affine_grid(theta, x.shape, align_corners=False), align_corners=False)


@pytest.mark.slow
def test_a_random_encoder_knows_little():
    torch.manual_seed(0)
    (x, y), (xt, yt) = load(TRAIN), load(TEST)
    net = resnet10()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = None  # a plain average over the batches
    with torch.no_grad():
        for _ in range(50):
            net(x[torch.randint(len(x), (256,))])
    z, zt = features(net, x), features(net, xt)
    probe = nn.Linear(z.shape[1], 10)
    nn.init.normal_(probe.weight, 0, 0.01)
    nn.init.zeros_(probe.bias)
    epochs, steps = 100, len(z) // 256
    sgd = torch.optim.SGD(probe.parameters(), lr=0.25, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, epochs * steps)
    for _ in range(epochs):
        for i in torch.randperm(len(z))[: steps * 256].view(steps, 256):
            sgd.zero_grad()
            cross_entropy(probe(z[i]), y[i]).backward()
            sgd.step()
            cosine.step()
    accuracy = (probe(zt).argmax(1) == yt).float().mean().item()
    assert 0.15 < accuracy <= 0.45, accuracy


@pytest.mark.slow
def test_a_trained_encoder_learns_it():
    torch.manual_seed(0)
    (x, y), (xt, yt) = load(TRAIN), load(TEST)
    net = nn.Sequential(resnet10(), nn.Linear(128, 10))
    epochs, steps = 7, len(x) // 128
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    rate = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.2, total_steps=epochs * steps)
    for _ in range(epochs):
        net.train()
        for i in torch.randperm(len(x))[: steps * 128].view(steps, 128):
            sgd.zero_grad()
            cross_entropy(net(crop_and_flip(x[i])), y[i]).backward()
            sgd.step()
            rate.step()
    accuracy = (features(net, xt).argmax(1) == yt).float().mean().item()
    assert accuracy >= 0.95, accuracy
