"""What a long computation has found so far, in files that only grow: killed, it goes on where it was."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ecpp.data import Unreadable
from ecpp.evaluate.features import Features
from ecpp.run.folder import write_json

Array = np.ndarray[Any, Any]

_COMMIT_EVERY = 5.0  # seconds
_VALUES, _INDEX, _UNREADABLE = "values.f32", "index.i64", "unreadable.jsonl"


class Parts:
    """Rows of embeddings with the numbers of their images. What lies beyond the last commit does not count."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder, self.identity = folder, identity
        self.done, self.rows, self.width, self.bad = (
            0,
            0,
            0,
            0,
        )  # images, rows, numbers a row, bytes of errors
        self._progress = folder / "progress.json"
        folder.mkdir(parents=True, exist_ok=True)
        if self._progress.exists():
            self._go_on()
        # Opened to append: what a killed process wrote after its last commit is cut off first.
        self._files = {name: open(folder / name, "ab") for name in (_VALUES, _INDEX, _UNREADABLE)}  # noqa: SIM115
        for name, size in self._sizes().items():
            if self._files[name].tell() < size:
                raise ValueError(f"{folder / name} has lost its end: remove {folder} to begin anew")
            self._files[name].truncate(size)
        self._committed = time.monotonic()

    def _go_on(self) -> None:
        try:
            progress = json.loads(self._progress.read_text())
            identity, counts = (
                progress["identity"],
                [int(progress[k]) for k in ("done", "rows", "width", "bad")],
            )
        except (ValueError, LookupError, TypeError) as e:
            raise ValueError(f"{self._progress} is damaged ({e}): remove {self.folder} to begin anew") from e
        changed = [k for k in self.identity if identity.get(k) != self.identity[k]]
        if changed:
            raise ValueError(
                f"{self.folder} holds what was begun with another {', '.join(changed)}: go on as it was begun, or "
                "remove it to begin anew"
            )
        self.done, self.rows, self.width, self.bad = counts

    def _sizes(self) -> dict[str, int]:
        return {_VALUES: self.rows * self.width * 4, _INDEX: self.rows * 8, _UNREADABLE: self.bad}

    def append(self, features: Features, done: int) -> None:
        """The next batch, after which `done` images are done."""
        if len(features.index):
            self.width = features.values.shape[1]
            self._files[_VALUES].write(features.values.numpy().astype("<f4").tobytes())
            self._files[_INDEX].write(features.index.numpy().astype("<i8").tobytes())
            self.rows += len(features.index)
        for error in features.unreadable:
            line = json.dumps([error.name, error.reason]).encode() + b"\n"
            self._files[_UNREADABLE].write(line)
            self.bad += len(line)
        self.done = done
        if time.monotonic() - self._committed > _COMMIT_EVERY:
            self.commit()

    def commit(self) -> None:
        """From now on this counts, whatever happens."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        counts = {"done": self.done, "rows": self.rows, "width": self.width, "bad": self.bad}
        write_json(self._progress, {"identity": self.identity} | counts)
        self._committed = time.monotonic()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def numbers(self) -> Iterator[int]:
        """The number of each row's image."""
        with open(self.folder / _INDEX, "rb") as file:
            while data := file.read(1 << 16):
                yield from np.frombuffer(data, dtype="<i8").tolist()

    def values(self, size: int) -> Iterator[Array]:
        """The embeddings, `size` rows at a time."""
        with open(self.folder / _VALUES, "rb") as file:
            while data := file.read(4 * self.width * size):
                yield np.frombuffer(data, dtype="<f4").reshape(-1, self.width)

    def unreadable(self) -> Iterator[Unreadable]:
        with open(self.folder / _UNREADABLE, "rb") as file:
            for line in file:
                yield Unreadable(*json.loads(line))
