"""`patterns`: ten families of ornament, drawn from (seed, index) alone; the dataset that ships as code.

All images mix the same two inks and two grounds in like shares: a colour histogram names neither the
image nor its class, so what two crops of an image have in common is, above all, the pattern.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

# The pairs are alike in brightness, so that brightness alone says where the pattern is.
_INKS = ((0.11, 0.25, 0.40), (0.64, 0.19, 0.17))  # navy, brick red
_GROUNDS = ((0.98, 0.92, 0.80), (0.96, 0.79, 0.44))  # cream, straw
_PIXELS = 1 << 16  # per pass: the planes of a pass stay in the processor's cache
_GRAIN = 64  # cells of grain along an image's side, whatever its size
_SLOTS = 48  # numbers drawn per image
_TAU = 2 * math.pi
_Field = Callable[[Tensor, Tensor, Tensor], Tensor]  # (u, v, parameters) -> signed distance


def labels(indices: Tensor | Sequence[int], seed: int = 0) -> Tensor:
    """The class of every image, int64: its index modulo ten, under every seed."""
    return _as_indices(indices) % len(CLASSES)


def render(indices: Tensor | Sequence[int], *, size: int = 32, seed: int = 0) -> Tensor:
    """Images (n, 3, size, size), uint8: each a scene given by (seed, index), sampled at `size`."""
    if size < 1:
        raise ValueError(f"size={size}: an image needs at least one pixel a side; give size=32, say")
    index = _as_indices(indices)
    out = torch.empty(len(index), 3, size, size, dtype=torch.uint8)
    for k, (field, period) in enumerate(_FAMILIES.values()):
        rows = torch.nonzero(index % len(CLASSES) == k).flatten()
        step = max(1, _PIXELS // size**2)
        for part in (rows[i : i + step] for i in range(0, len(rows), step)):
            out[part] = _draw(field, period, _uniform(index[part], seed), size)
    return out


def _as_indices(indices: Tensor | Sequence[int]) -> Tensor:
    index = torch.as_tensor(indices, device="cpu").flatten()
    if len(index) and index.is_floating_point():
        raise ValueError(f"indices are {index.dtype}; images are numbered by integers")
    if len(index) and (least := int(index.min())) < 0:
        raise ValueError(f"index {least} is negative; images are numbered from 0")
    return index.to(torch.int64)


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser in wrapping int64; the masks make `>>` logical."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & (1 << 33) - 1)


def _uniform(index: Tensor, seed: int) -> Tensor:
    """(slots, n, 1, 1) numbers in [0, 1), a hash of (seed, index, slot)."""
    key = _mix(_mix(torch.tensor((seed + 2**63) % 2**64 - 2**63)) + index)
    bits = _mix(key + torch.arange(1, _SLOTS + 1)[:, None] * -0x61C8864680B583EB)
    return ((bits >> 40 & (1 << 24) - 1).float() / 2**24)[..., None, None]


def _draw(field: _Field, period: float, p: Tensor, size: int) -> Tensor:
    """Scene -> pixels. No reduction and no `pow`: their last bit depends on who else is in the batch."""
    line = ((torch.arange(size, dtype=torch.float32) + 0.5) / size - 0.5).repeat(p.shape[1], 1)
    x, y = line[:, None, :], line[:, :, None]  # (n, 1, size), (n, size, 1)

    # Where: warp, turn by up to a quarter, scale, stretch and shift, into periods of the pattern.
    wx = x + _wave(x, y, p[0:2], 9.0) * (0.01 * p[2])
    wy = y + _wave(x, y, p[3:5], 9.0) * (0.01 * p[5])
    turn, bias = _TAU / 2 * (p[6] - 0.5), 0.07 * (2 * p[7] - 1)
    stretch = (1 + bias) / (1 - bias)
    unit = period * (0.18 + 0.07 * p[8])  # the period as a share of the image's side
    u = (wx * torch.cos(turn) + wy * torch.sin(turn)) * (stretch / unit) + 16 * p[9]
    v = (wy * torch.cos(turn) - wx * torch.sin(turn)) / (stretch * unit) + 16 * p[10]
    distance = field(u, v, p[32:]) * unit + (p[11] - 0.5) * 0.02

    # What: ink where the distance is negative, with an edge no sharper than a pixel; then clutter.
    edge = ((0.02 + 0.02 * p[12]).square() + size**-2.0).sqrt()
    ink = (0.5 - distance / edge).clamp(0, 1)
    ink = ink * (1 - _occluder(x, y, p[13:18], size))
    ink = ink + (1 - ink) * _occluder(x, y, p[18:23], size)

    # How: two inks and two grounds that drift into each other, relief, slanting light, grain.
    drift = [0.5 + 0.42 * _wave(x, y, p[j : j + 2], 9.0) for j in (23, 25)]
    light = (distance * 16).clamp(-1, 1) * (0.12 * (p[27] - 0.5)) + 1
    light = light + (x * torch.cos(_TAU * p[28]) + y * torch.sin(_TAU * p[28])) * (0.3 * p[29])
    light = light + _grain(p[30], size) * (0.02 + 0.04 * p[31])
    planes = []
    for ink0, ink1, ground0, ground1 in zip(*_INKS, *_GROUNDS, strict=True):
        ground = drift[1] * (ground1 - ground0) + ground0
        planes.append((ground + (drift[0] * (ink1 - ink0) + ink0 - ground) * ink) * light)
    return (torch.stack(planes, 1) * 255 + 0.5).clamp(0, 255).to(torch.uint8)


def _wave(x: Tensor, y: Tensor, p: Tensor, k: float) -> Tensor:
    """A plane wave of wave number `k`; by the addition theorem it takes the sines of lines alone."""
    a = x * (k * torch.cos(_TAU * p[0])) + _TAU * p[1]
    b = y * (k * torch.sin(_TAU * p[0]))
    return torch.sin(a) * torch.cos(b) + torch.cos(a) * torch.sin(b)


def _occluder(x: Tensor, y: Tensor, p: Tensor, size: int) -> Tensor:
    """The share of each pixel that a dot or a bar covers."""
    cos, sin = torch.cos(_TAU * p[2]), torch.sin(_TAU * p[2])
    dx, dy = x - (p[0] - 0.5), y - (p[1] - 0.5)
    a, b = dx * cos + dy * sin, dy * cos - dx * sin
    half = torch.where(p[3] < 0.5, 0.0, 0.1 + 0.2 * p[3])
    a = a - torch.maximum(torch.minimum(a, half), -half)
    return (0.5 - ((a * a + b * b).sqrt() - (0.02 + 0.03 * p[4])) * size).clamp(0, 1)


@functools.cache
def _sheet(step: int) -> Tensor:
    """One sheet of hashed noise in [-1, 1] for all images, averaged over `step` cells a side."""
    bits = _mix(_mix(torch.arange(512 * 512))) >> 40
    return avg_pool2d((bits.float() / 2**23).view(1, 512, 512), step)[0]


def _grain(p: Tensor, size: int) -> Tensor:
    """Grain that is fixed to the scene: every image has its window of the sheet, at any size."""
    step = 1 if size >= _GRAIN else 2 if 2 * size >= _GRAIN else 4
    at = (torch.arange(size) * (_GRAIN // step)).div(size, rounding_mode="floor")
    corner = (p * 2**12).to(torch.int64).view(-1, 1, 1)
    rows, columns = corner // 64 * (4 // step) + at[:, None], corner % 64 * (4 // step) + at
    return _sheet(step)[rows, columns]


# A family is a signed distance, negative on ink, at (u, v) in periods; about half of it is ink.


def _fold(x: Tensor) -> Tensor:
    """Distance to the nearest whole number."""
    return (x - torch.round(x)).abs()


def _either(a: Tensor, b: Tensor) -> Tensor:
    """Inside one of the two and outside the other."""
    return torch.maximum(torch.minimum(a, b), -torch.maximum(a, b))


def _hexagonal(u: Tensor, v: Tensor) -> Tensor:
    """Distance to the nearest point of a hexagonal lattice of pitch 1."""
    a, b = _fold(u), _fold(v / 1.7320508) * 1.7320508
    c, d = 0.5 - a, 0.8660254 - b
    return torch.minimum(a * a + b * b, c * c + d * d).sqrt()


def _cells(u: Tensor, v: Tensor, p: Tensor) -> Tensor:
    """Voronoi cells of a jittered lattice, parted by what lies about as near to two points."""
    first = second = torch.full_like(u, 9.0)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            a, b = torch.floor(u) + i, torch.floor(v) + j
            h = torch.sin(a * 12.9898 + b * 78.233 + 100 * p[0]) * 437.585
            g = h * 7.31
            du, dv = u - a - 0.1 - 0.8 * (h - torch.floor(h)), v - b - 0.1 - 0.8 * (g - torch.floor(g))
            r = (du * du + dv * dv).sqrt()
            second = torch.minimum(second, torch.maximum(first, r))
            first = torch.minimum(first, r)
    return 0.125 - (second - first) * 0.5


def _triangles(u: Tensor, v: Tensor, p: Tensor) -> Tensor:
    a, b = u - v * 0.5773503, v * 1.1547005
    a, b = a - torch.floor(a), b - torch.floor(b)
    up = torch.minimum(torch.minimum(a, b), 1 - a - b)
    down = torch.minimum(torch.minimum(1 - a, 1 - b), a + b - 1)
    return torch.where(a + b < 1, -up, down) * 0.8660254


def _scales(u: Tensor, v: Tensor, p: Tensor) -> Tensor:
    """Outlined discs in rows half a disc apart, each row over the one behind it."""
    row = torch.floor(v * 2)
    d = torch.ones_like(u)
    for k in (0, 1, 2):
        a, b = _fold(u + (row + k) * 0.5), v - (row + k) * 0.5
        r = (a * a + b * b).sqrt()
        d = torch.where(r < 0.6, r - 0.25, d)
        d = torch.minimum(d, (r - 0.6).abs() - 0.08)  # lies on both sides of the rim: no jags
    return d


def _maze(u: Tensor, v: Tensor, p: Tensor) -> Tensor:
    """Waves of one length from all sides: a stripe that has lost its way."""
    total = torch.zeros_like(u)
    for j in range(6):
        turn = math.pi / 6 * (j + p[j])
        total = total + torch.sin((u * torch.cos(turn) + v * torch.sin(turn) + p[6 + j]) * _TAU)
    return total * 0.1


# With each family its period: one that gives all of them like lengths of edge on an image.
_FAMILIES: dict[str, tuple[_Field, float]] = {
    "stripes": (lambda u, v, p: _fold(u) - 0.25, 1.0),
    "chevrons": (lambda u, v, p: (_fold(u + 2 * _fold(v / 2)) - 0.25) * 0.7071068, 1.4),
    "checks": (lambda u, v, p: _either(_fold(u) - 0.25, _fold(v) - 0.25), 1.5),
    "dots": (lambda u, v, p: _hexagonal(u, v) - 0.37, 1.2),
    "rings": (lambda u, v, p: (_hexagonal(u, v) - 0.32).abs() - 0.107, 1.6),
    "bricks": (lambda u, v, p: 0.187 - torch.minimum(_fold((u + torch.floor(v)) / 2) * 2, _fold(v)), 1.05),
    "cells": (_cells, 1.35),
    "triangles": (_triangles, 1.7),
    "scales": (_scales, 1.7),
    "maze": (_maze, 1.1),
}
CLASSES: tuple[str, ...] = tuple(_FAMILIES)
