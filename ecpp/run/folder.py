"""The layout of a run folder.

run.json          the config, as given and resolved; the plan; versions, machine and command
metrics.jsonl     one line every few steps, one per epoch
checkpoint.pt     everything that training needs to go on
evaluation.json   accuracies with their protocols
views.png, neighbours.png, report.html where they were asked for
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecpp.config import Config


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

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation.json"

    def read(self) -> dict[str, Any]:
        """run.json, with a sentence if this is no run."""
        try:
            about: dict[str, Any] = json.loads(self.about.read_text())
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path} is no run: it holds no run.json. `ecpp pretrain SOURCE --out {self.path}` makes one"
            ) from None
        except json.JSONDecodeError as e:
            raise ValueError(f"{self.about} is damaged: {e}") from e
        for key in ("config", "resolved"):
            if not isinstance(about.get(key), dict):
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

    def rewind(self, step: int) -> None:
        """Drop what was logged after `step`: it is about to happen again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break  # the line that was being written when the run was stopped
            if record["step"] <= step:
                kept.append(line + "\n")
        write_whole(self.metrics, "".join(kept))


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
