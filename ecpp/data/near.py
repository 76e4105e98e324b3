"""Pictures that are the same, or nearly, among millions: found by a few bytes of each."""

import hashlib
from itertools import combinations, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS, COLUMNS = 8, 8
FIRM = 1.0  # levels of 255 by which two neighbours must differ to be told apart in a compressed picture, too
PLAIN = 32  # of 64 differences: pictures with fewer firm ones look alike without being so
MOST = 8  # bits; with more, pictures have little in common and the search takes long
_AGREEING = 3  # more make the search faster while it has few tables, and need more tables


def pixel_hash(image: Tensor) -> tuple[int, int]:
    """128 bits of the shape and all pixels of a uint8 image (C, H, W), as two signed numbers."""
    digest = hashlib.blake2b(str(tuple(image.shape)).encode(), digest_size=16)
    digest.update(image.permute(1, 2, 0).contiguous().numpy().data)  # (H, W, C)
    value = digest.digest()
    return int.from_bytes(value[:8], "big", signed=True), int.from_bytes(value[8:], "big", signed=True)


def difference_hash(image: Tensor) -> int | None:
    """64 bits: where the grey picture, reduced to 8×9, gets darker from left to right. None for plain pictures."""
    most = (16 * ROWS, 16 * (COLUMNS + 1))
    if (
        image.shape[1] > most[0] and image.shape[2] > most[1]
    ):  # as bytes, so that photographs take little memory
        image = F.interpolate(image[None], most, mode="bilinear", antialias=True)[0]
    weights = (
        torch.tensor([0.299, 0.587, 0.114]) if len(image) == 3 else torch.full((len(image),), 1 / len(image))
    )
    grey = torch.einsum("chw,c->hw", image.float(), weights)
    small = F.interpolate(grey[None, None], (ROWS, COLUMNS + 1), mode="bilinear", antialias=True)[0, 0]
    fall = (small[:, :-1] - small[:, 1:]).flatten()  # (64,)
    if int((fall.abs() > FIRM).sum()) < PLAIN:
        return None
    value = sum(1 << i for i, falls in enumerate((fall > FIRM).tolist()) if falls)
    return _signed(value)


def _signed(value: int) -> int:
    """The 64 bits as a number that int64 holds."""
    return value - (1 << 64) if value >> 63 else value


def same(keys: Tensor) -> Tensor:
    """(n, 2) to (n,): equal numbers, from 0 on, for equal rows."""
    order = keys[:, 1].argsort(stable=True)
    order = order[keys[order, 0].argsort(stable=True)]
    new = (keys[order[1:]] != keys[order[:-1]]).any(dim=1)
    numbers = torch.zeros(len(keys), dtype=torch.int64)
    numbers[order[1:]] = new.cumsum(0)
    return numbers


def alike(hashes: Tensor, distance: int) -> Tensor:
    """(n,) to (n,): equal numbers for hashes that a chain of steps of at most `distance` bits joins."""
    unique, place = torch.unique(hashes, return_inverse=True)
    left, right = near_pairs(unique, distance).unbind(1)
    number = torch.arange(len(unique))
    while True:  # the lowest number spreads along the pairs
        low = torch.minimum(number[left], number[right])
        spread = number.scatter_reduce(0, left, low, "amin").scatter_reduce(0, right, low, "amin")
        spread = spread[spread]
        if torch.equal(spread, number):
            return number[place]
        number = spread


def near_pairs(hashes: Tensor, distance: int) -> Tensor:
    """(n,) different hashes to (pairs, 2): the places of all pairs that differ in at most `distance` bits.

    Cut into distance + 3 bands, such hashes agree in 3 bands at least: only pairs that agree in some 3 are compared.
    """
    pairs = torch.empty(0, dtype=torch.int64)  # left · n + right
    cuts = torch.linspace(0, 64, distance + _AGREEING + 1).round().int().tolist()
    bands = [(1 << stop) - (1 << start) for start, stop in pairwise(cuts)]
    for chosen in combinations(bands, _AGREEING):
        found = _within(hashes, hashes & _signed(sum(chosen)), distance)
        pairs = torch.unique(torch.cat([pairs, *found]))
    return torch.stack([pairs // max(1, len(hashes)), pairs % max(1, len(hashes))], dim=1)


def _within(hashes: Tensor, keys: Tensor, distance: int) -> list[Tensor]:
    """The near pairs among hashes of equal keys: each with the next one of its key, then the one after it, …"""
    order = keys.argsort()
    keys, step = keys[order], 1
    found: list[Tensor] = []
    places = torch.arange(len(keys))
    while True:
        places = places[places < len(keys) - step]
        places = places[keys[places] == keys[places + step]]
        if not len(places):
            return found
        one, other = order[places], order[places + step]
        near = _bits(hashes[one] ^ hashes[other]) <= distance
        one, other = one[near], other[near]
        found.append(torch.minimum(one, other) * len(hashes) + torch.maximum(one, other))
        step += 1


def _bits(x: Tensor) -> Tensor:
    """How many bits are set in each int64, by adding neighbours: 2, 4 and 8 bits wide."""
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (x * 0x0101010101010101) >> 56  # the sum of all bytes


def groups(numbers: Tensor) -> list[list[int]]:
    """The places of equal numbers, wherever there are several."""
    several = (torch.bincount(numbers)[numbers] > 1).nonzero()[:, 0]
    places: dict[int, list[int]] = {}
    for place, value in zip(several.tolist(), numbers[several].tolist(), strict=True):
        places.setdefault(value, []).append(place)
    return list(places.values())
