"""A run's failing step, once more and with checks."""

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ecpp import distributed
from ecpp.config import Config
from ecpp.model.norm import synchronise
from ecpp.run import build
from ecpp.run.folder import RunFolder
from ecpp.run.go import Run
from ecpp.train import Hooks, NotFinite

QUIET = Console(quiet=True)


class _Enough(Exception):
    """The step that was to be seen again is behind us."""


def replay(out: Path) -> tuple[str, bool]:
    """From the last checkpoint to the step in failure.json; what was seen, and whether it broke again."""
    folder = RunFolder(out)
    config = folder.resolved()
    step = _failing_step(folder)
    with distributed.start(config.device or "cpu"):
        run = _run(config, folder)
        run.restore(allow_inexact=True)
        start = run.training.progress.step

        def log(record: dict[str, Any]) -> None:
            if record["step"] > step:
                raise _Enough

        hooks = Hooks(log=log, after_epoch=lambda _: {}, save=lambda: None)
        try:
            run.train(hooks, watchful=True)
        except NotFinite as e:
            failure = run.failure(e)
            found = "the step broke again"
            if failure.step < step:
                found = f"what stopped training at step {step} shows already here, as every step is looked at"
            return f"replayed from step {start}; {found}. {failure.sentence()}", True
        except _Enough:
            pass
        return (
            f"replayed from step {start}: step {step} is finite this time, so what broke it is not in the run's own "
            "numbers: look at the machine, its memory and the files",
            False,
        )


def _failing_step(folder: RunFolder) -> int:
    folder.read()
    if not folder.failure.exists():
        raise ValueError(
            f"{folder.path} has no failure.json: no step of it was broken, so none can be replayed"
        )
    try:
        return int(json.loads(folder.failure.read_text())["step"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{folder.failure} is damaged: {e}") from e


def _run(config: Config, folder: RunFolder) -> Run:
    torch.set_num_threads(config.threads or 1)
    data = build.open_data(config)
    method = build.build_method(config)
    synchronise(method)
    stream = build.build_stream(config, data.train, lambda error: None)
    return Run(config, folder, method, stream, data, [], QUIET)
