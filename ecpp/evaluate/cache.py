"""Frozen features kept in files, under a key that names all they depend on."""

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ecpp import distributed
from ecpp.data import Images, Unreadable
from ecpp.evaluate.features import Features

LIMIT = 8 << 30  # bytes in one folder: beyond them the entries that were not asked for longest go
MAPPED = 256 << 20  # from this size on a file is not read but mapped
SAMPLED = 1024  # images, evenly spaced, whose content is looked at


class Found(NamedTuple):
    features: Features
    seconds: float  # that it took to compute them, now or back then
    cached: bool


def hash_weights(module: nn.Module) -> str:
    """What tells one set of weights and statistics from another."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def hash_images(images: Images) -> str:
    """What tells one split from another: all names in order, and the content of up to 1,024 images."""
    digest = hashlib.sha256(f"{len(images)} {images.channels}\n".encode())
    for i in range(len(images)):
        digest.update(images.name(i).encode("utf-8", "surrogateescape") + b"\0")
    for i in range(0, len(images), -(-len(images) // SAMPLED)):
        try:
            content = images.encoded(i)
            digest.update(images.read(i).numpy().tobytes() if content is None else content)
        except Unreadable as e:
            digest.update(e.reason.encode())
    return digest.hexdigest()[:32]


class FeatureCache:
    """A folder of features. What is damaged or does not fit its own description is computed anew, with a word.

    `folder=None` keeps nothing. Of several ranks the first writes, and all agree on whether an entry is there.
    """

    def __init__(
        self, folder: Path | None, *, limit: int = LIMIT, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.folder, self.limit, self.say = folder, limit, say

    def get(self, key: Mapping[str, Any], count: int, compute: Callable[[], Features]) -> Found:
        """The features of `count` images that belong to `key`."""
        if self.folder is None:
            return _timed(compute)
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        values, about = self.folder / f"{name}.npy", self.folder / f"{name}.json"
        try:
            found = _read(values, about, count)
            about.touch()
        except FileNotFoundError:
            found = None
        except (ValueError, KeyError, TypeError, EOFError, OSError) as e:
            self.say(f"the features kept in {values} are damaged ({e}): they are computed anew")
            found = None
        if bool(distributed.gather_rows(torch.tensor([found is not None])).all()) and found is not None:
            return found
        found = _timed(compute)
        if distributed.is_main() and found.features.values.nbytes <= self.limit:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(values, about, key, found, count)
            self._prune(keep=name)
        distributed.barrier()  # nobody looks for it before it is there
        return found

    def _prune(self, keep: str) -> None:
        """Entries go, those asked for longest ago first, until the others take no more than the limit."""
        if self.folder is None:
            return
        newest = sorted(
            self.folder.glob("*.json"), key=lambda f: (f.stem == keep, f.stat().st_mtime), reverse=True
        )
        room = self.limit
        for about in newest:
            values = about.with_suffix(".npy")
            room -= values.stat().st_size if values.exists() else 0
            if room < 0:
                about.unlink()
                values.unlink(missing_ok=True)


def _timed(compute: Callable[[], Features]) -> Found:
    started = time.perf_counter()
    return Found(compute(), time.perf_counter() - started, False)


def _write(values: Path, about: Path, key: Mapping[str, Any], found: Found, count: int) -> None:
    """The description last: features without one do not count."""
    f = found.features
    missing = torch.ones(count, dtype=torch.bool)
    missing[f.index] = False
    array = f.values.numpy()
    text = {
        "key": dict(key),
        "shape": list(array.shape),
        "crc": _checksum(array),
        "seconds": found.seconds,
        "missing": missing.nonzero()[:, 0].tolist(),
        "unreadable": [[e.name, e.reason] for e in f.unreadable],
    }
    about.unlink(missing_ok=True)
    temporary = values.with_name(f".{values.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.save(file, array)
        os.replace(temporary, values)
        temporary.write_text(json.dumps(text, indent=1))
        os.replace(temporary, about)
    finally:
        temporary.unlink(missing_ok=True)


def _read(values: Path, about: Path, count: int) -> Found:
    text = json.loads(about.read_text())
    # Copy on write: a mapped file is never changed, and torch takes no array that is read-only.
    array = np.load(values, mmap_mode="c" if values.stat().st_size >= MAPPED else None)
    index = torch.ones(count, dtype=torch.bool)
    index[text["missing"]] = False
    place = index.nonzero()[:, 0]
    if array.dtype != np.float32 or list(array.shape) != text["shape"] or len(array) != len(place):
        raise ValueError(
            f"{array.dtype} of shape {array.shape}, expected {text['shape']} for {len(place)} images"
        )
    if _checksum(array) != text["crc"]:
        raise ValueError("their checksum is another")
    unreadable = tuple(Unreadable(name, reason) for name, reason in text["unreadable"])
    rows: Tensor = torch.from_numpy(array)
    return Found(Features(rows, place, unreadable), float(text["seconds"]), True)


def _checksum(array: np.ndarray) -> int:
    crc = 0
    for start in range(0, len(array), 4096):
        crc = zlib.crc32(np.ascontiguousarray(array[start : start + 4096]).data, crc)
    return crc
