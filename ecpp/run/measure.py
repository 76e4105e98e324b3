"""What a setting costs on this machine: a few of its steps, taken in a process of their own."""

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from ecpp.config import Config
from ecpp.data import Stream
from ecpp.model.norm import synchronise
from ecpp.run import build
from ecpp.run.folder import RunFolder
from ecpp.run.go import Run
from ecpp.run.resolve import absolute, resolve
from ecpp.train import Hooks
from ecpp.views import ViewBatch

STEPS = 5  # the first one, which also allocates and chooses algorithms, is not timed; the last one is logged


@dataclass(frozen=True)
class Cost:
    """Of one setting."""

    step_seconds: float
    steps_per_epoch: int
    memory: int  # bytes: the most that the process held, on a GPU the most that lay there

    @property
    def epoch_seconds(self) -> float:
        return self.step_seconds * self.steps_per_epoch


class _Enough(Exception):
    """All steps that were wanted are behind us."""


def measure(config: Config) -> Cost:
    """The cost of a config, by a fresh process: what another one has allocated would be counted in."""
    words = [sys.executable, "-m", "ecpp.run.measure"]
    done = subprocess.run(words, input=json.dumps(config.to_json()), capture_output=True, text=True)
    if done.returncode == 2:
        raise ValueError(done.stderr.strip())
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise ValueError(
            f"the steps of K={config.views} could not be taken, perhaps for want of memory: {reason}"
        )
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def take_steps(config: Config) -> Cost:
    """A few steps of a run that writes nothing, and one look at its health as after an epoch."""
    config = absolute(config)
    data = build.open_data(config)
    config = replace(resolve(config, data.train), log_every=STEPS)
    torch.set_num_threads(config.threads or 1)
    method = build.build_method(config)
    synchronise(method)
    stream = build.build_stream(config, data.train, lambda error: None)
    clock = _Clock(stream)
    run = Run(config, RunFolder(Path()), method, stream, data, [], Console(quiet=True))
    with contextlib.suppress(_Enough):
        run.train(Hooks(log=lambda record: None, after_epoch=lambda epoch: {}, save=lambda: None))
    if len(clock.times) < 3:
        raise ValueError(f"{len(data.train)} images make fewer than two steps: take a smaller --batch-size")
    spans = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)][1:]
    # One step in every `log_every` also computes what is logged.
    plain, logged = statistics.median(spans[:-1] or spans), spans[-1]
    every = Config.log_every
    seconds = plain + max(0.0, logged - plain) / every
    return Cost(seconds, stream.steps_per_epoch, _memory(stream.device))


class _Clock:
    """Notes when each batch of a stream is asked for, and ends training after a few of them."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.times = stream, list[float]()
        self._batches = stream.batches
        stream.batches = self.batches  # type: ignore[method-assign]  # of this one stream alone

    def batches(self, start: int, stop: int) -> Iterator[ViewBatch]:
        self._note()
        for batch in self._batches(start, stop):
            yield batch
            self._note()
            if len(self.times) > STEPS:
                raise _Enough

    def _note(self) -> None:
        if self.stream.device.type == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    try:
        import resource
    except ImportError:  # Windows does not tell
        return 0
    status = Path("/proc/self/status")
    if status.exists():  # the figure of getrusage may be that of the process which started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(take_steps(Config.from_json(json.load(sys.stdin))))))
    except (ValueError, OSError, ImportError) as e:
        print(e, file=sys.stderr)
        sys.exit(2)
