"""The layout of a run folder.

run.json          the config, as given and resolved; the plan; versions, machine and command
metrics.jsonl     one line every few steps, one per epoch
checkpoint.pt     everything that training needs to go on; checkpoint-previous.pt the one before it
best.pt           the weights of the best epoch, with --keep-best
epochs/NNNN.pt    the encoder after each epoch, with --keep-epochs
failure.json      the step that stopped the run, if its numbers went wrong
evaluation.json   accuracies with their protocols;  curve.json  that of each kept epoch
evaluation-best.json, evaluation-NNNN.json  the same of the best or another epoch
features/         frozen features, kept to be used again; may be deleted at any time
views.png, neighbours.png, report.html where they were asked for
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ecpp.config import Config

Epoch = int | Literal["best"] | None
"""Whose weights: those after an epoch (with --keep-epochs), of the best one (with --keep-best), or the newest."""


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def about(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    def epoch(self, number: int) -> Path:
        return self.path / "epochs" / f"{number:04d}.pt"

    @property
    def best(self) -> Path:
        return self.path / "best.pt"

    def weights(self, epoch: Epoch) -> Path:
        """The file with the encoder of that epoch, which must be there."""
        if epoch is None:
            file, hint = self.checkpoint, f"has no checkpoint yet: `ecpp resume {self.path}` goes on with it"
        elif epoch == "best":
            file, hint = self.best, "kept no best epoch: `ecpp pretrain --keep-best` does"
        elif not isinstance(epoch, int) or epoch < 1:
            raise ValueError(f"an epoch is a number from 1, or best, but is {epoch!r}")
        elif kept := sorted(int(p.stem) for p in self.epoch(epoch).parent.glob("[0-9]*.pt")):
            file, hint = (
                self.epoch(epoch),
                f"kept no encoder of epoch {epoch}, but of {kept[0]} to {kept[-1]}",
            )
        else:
            file, hint = (
                self.epoch(epoch),
                f"kept no encoder of epoch {epoch}: `ecpp pretrain --keep-epochs` does",
            )
        if not file.exists():
            raise FileNotFoundError(f"{self.path} {hint}")
        return file

    @property
    def failure(self) -> Path:
        return self.path / "failure.json"

    def evaluation(self, epoch: Epoch = None) -> Path:
        of = "" if epoch is None else "-best" if epoch == "best" else f"-{epoch:04d}"
        return self.path / f"evaluation{of}.json"

    @property
    def curve(self) -> Path:
        return self.path / "curve.json"

    @property
    def features(self) -> Path:
        return self.path / "features"

    def read(self) -> dict[str, Any]:
        """run.json, with a sentence if this is no run."""
        try:
            about: dict[str, Any] = json.loads(self.about.read_text())
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path} is no run: it holds no run.json. `ecpp pretrain SOURCE --out {self.path}` makes one"
            ) from None
        except NotADirectoryError:
            raise ValueError(f"{self.path} is a file: give the folder of a run") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as e:
            raise ValueError(f"{self.about} is damaged: {e}") from e
        for key in ("config", "resolved"):
            if not isinstance(about, dict) or not isinstance(about.get(key), dict):
                raise ValueError(
                    f"{self.about} lacks its {key!r}: it was not written by this version of ecpp"
                )
        return about

    def config(self) -> Config:
        """The config as it was given."""
        return Config.from_json(self.read()["config"])

    def resolved(self) -> Config:
        """The config as it ran, every choice filled in."""
        return Config.from_json(self.read()["resolved"])

    def append(self, record: dict[str, Any]) -> None:
        """One line into metrics.jsonl."""
        with open(self.metrics, "a") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The whole lines of metrics.jsonl; a last one that is still being written is left out."""
        lines = self.metrics.read_text().splitlines(keepends=True) if self.metrics.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rewind(self, step: int) -> None:
        """Drop what was logged after `step`: it is about to happen again."""
        if not self.metrics.exists():
            return
        lines = self.metrics.read_bytes().decode(errors="replace").splitlines()
        kept = []
        for number, line in enumerate(lines, 1):
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (json.JSONDecodeError, KeyError, TypeError) as e:
                if number < len(lines):  # the last line may have been cut off by a stop
                    raise ValueError(
                        f"line {number} of {self.metrics} is damaged: take it out to go on"
                    ) from e
        write_whole(self.metrics, "".join(kept))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time trains into a run."""
        with locked(self.path, f"another process is training into {self.path}: wait for it, or stop it"):
            for left in self.path.glob(".*.tmp"):  # by a process that was killed while writing
                left.unlink(missing_ok=True)
            yield


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """One process at a time, the others get the sentence. The lock is the system's, so a killed process leaves none."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            import fcntl
        except ImportError:  # Windows has no such lock
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        yield


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
