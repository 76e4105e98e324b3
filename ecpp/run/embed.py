"""`ecpp embed`: the embeddings of all images of a source, in one file."""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ecpp.data import Images, Splits, open_source
from ecpp.evaluate.embed import embeddings
from ecpp.run import about, build
from ecpp.run.folder import Epoch, RunFolder, locked
from ecpp.run.parts import Parts
from ecpp.run.resolve import usable_device
from ecpp.run.table import WRITERS, Table, about_file
from ecpp.run.weights import load

BATCH = 256  # images; an encoder's rounding may depend on it, so it is no option
_IDENTITY = "identity"


@dataclass(frozen=True)
class Embedded:
    """What `embed_run` wrote."""

    file: Path
    rows: int
    unreadable: tuple[str, ...]
    notes: tuple[str, ...]


class All:
    """The splits of a source one after another."""

    def __init__(self, splits: Splits) -> None:
        self.parts: dict[str, Images] = {"train": splits.train}
        if splits.test is not None:
            self.parts["test"] = splits.test
        self.channels, self.classes, self.labels = splits.train.channels, splits.train.classes, None
        self.labelled = any(part.labels is not None for part in self.parts.values())

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def place(self, index: int) -> tuple[str, Images, int]:
        """The split of an image, and its number there."""
        for name, part in self.parts.items():
            if index < len(part):
                return name, part, index
            index -= len(part)
        raise IndexError("there is no such image")

    def name(self, index: int) -> str:
        _, part, i = self.place(index)
        return part.name(i)

    def split(self, index: int) -> str:
        return self.place(index)[0]

    def label(self, index: int) -> str:
        """The name of its class; empty if it has none."""
        _, part, i = self.place(index)
        return "" if part.labels is None else part.classes[int(part.labels[i])]

    def read(self, index: int) -> torch.Tensor:
        _, part, i = self.place(index)
        return part.read(i)

    def encoded(self, index: int) -> bytes | None:
        _, part, i = self.place(index)
        return part.encoded(i)

    def in_memory(self) -> None:
        """Never: they come as a stream."""


def embed_run(
    run: Path,
    source: str,
    out: Path,
    *,
    epoch: Epoch = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embedded:
    """Embed every image of `source` into `out`, a .npz or .parquet; killed and called again, it goes on."""
    if out.suffix not in WRITERS:
        raise ValueError(f"--out must end in {' or '.join(WRITERS)}, but is {out.name!r}")
    if workers is not None and workers < 0:
        raise ValueError(f"--workers must be at least 0, but is {workers}")
    config = RunFolder(run).resolved()
    encoder = load(run, epoch=epoch)
    splits = open_source(source, channels=config.channels)
    images = All(splits)
    torch.set_num_threads(config.threads or 1)
    encoder.to(usable_device(None))
    preprocess = build.build_preprocess(config)
    identity = {
        "weights": _digest(encoder),
        "images": about.fingerprint(images),
        "preprocess": repr(preprocess),
        "device": next(encoder.parameters()).device.type,
        "threads": torch.get_num_threads(),
    }
    if out.exists():
        return _complete(out, identity, splits.notes)
    out.parent.mkdir(parents=True, exist_ok=True)
    room = out.with_name(f".{out.name}.parts")
    with locked(room, f"another process is writing {out}: wait for it, or stop it"):
        parts = Parts(room, identity)
        try:
            stream = embeddings(
                encoder,
                images,
                preprocess,
                start=parts.done,
                batch_size=BATCH,
                workers=(config.workers or 0) if workers is None else workers,
            )
            for done, features in stream:
                parts.append(features, done)
                progress(done, len(images))
            parts.commit()
        finally:
            parts.close()
        bad = _write(parts, images, out, identity)
    shutil.rmtree(room)
    return Embedded(out, parts.rows, bad, splits.notes)


def _write(parts: Parts, images: All, out: Path, identity: dict[str, Any]) -> tuple[str, ...]:
    bad = tuple(f"{e.name}: {e.reason}" for e in parts.unreadable())
    if not parts.rows:
        raise ValueError(f"none of the {len(images)} images can be read, such as {bad[0] if bad else 'none'}")
    table = Table(
        rows=parts.rows,
        width=parts.width,
        numbers=parts.numbers,
        values=parts.values,
        name=images.name,
        split=images.split,
        label=images.label if images.labelled else None,
        unreadable=lambda: iter(bad),
        about={_IDENTITY: identity, "rows": parts.rows},
    )
    temporary = parts.folder / f"whole{out.suffix}"
    WRITERS[out.suffix](table, temporary)
    os.replace(temporary, out)
    return bad


def _complete(out: Path, identity: dict[str, Any], notes: tuple[str, ...]) -> Embedded:
    """A file that is there already stands, if it is the one that was asked for."""
    found = about_file(out)
    if found is None or found.get(_IDENTITY) != identity:
        raise ValueError(f"{out} exists and holds something else: choose another --out, or remove it")
    return Embedded(out, found["rows"], (), (*notes, f"{out} was complete"))


def _digest(encoder: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in encoder.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
