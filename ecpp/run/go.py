"""A run from its last checkpoint to its end."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from ecpp import distributed
from ecpp.config import Config
from ecpp.data import Stream, Unreadable
from ecpp.method import Method
from ecpp.run import about, build
from ecpp.run.folder import RunFolder, write_json
from ecpp.run.state import Training, check_circumstances
from ecpp.run.watch import Watch, as_record
from ecpp.run.weights import keep_epoch
from ecpp.train import (
    Failure,
    Guard,
    Hooks,
    NotFinite,
    Options,
    Stopped,
    build_optimizer,
    diagnose,
    learning_rate,
    load_checkpoint,
    newest_good,
    save_checkpoint,
    train,
)
from ecpp.train.loggers import Log, open_loggers
from ecpp.train.progress import Display

SAVE_EVERY = 600.0  # seconds between two checkpoints within an epoch, which may take hours


@dataclass
class Run:
    """What takes part in a run."""

    config: Config
    folder: RunFolder
    method: Method
    stream: Stream
    data: build.Data
    unreadable: list[Unreadable]  # images that were left out and not yet logged
    console: Console

    def __post_init__(self) -> None:
        c = self.config
        optimizer = build_optimizer(
            c.optimizer, self.method, lr=c.lr or 0.0, momentum=c.momentum, weight_decay=c.weight_decay
        )
        guard = Guard(self.stream.device, fp16=c.precision == "fp16")
        self.training = Training(c, self.method, optimizer, guard)

    @property
    def total(self) -> int:
        return self.config.epochs * self.stream.steps_per_epoch

    def restore(self, *, allow_inexact: bool = False) -> None:
        """The state of the newest checkpoint that can be read, if there is one."""
        path, note = distributed.first(lambda: newest_good(self.folder.checkpoint))
        self._say(note)
        if path is None:
            return
        state = load_checkpoint(path, self.config.device or "cpu")
        self._say(check_circumstances(state, self.config, allow_inexact=allow_inexact))
        self.training.restore(state)

    def go(self, *, allow_inexact: bool = False) -> None:
        """Train to the end, and leave a sentence where that is not reached."""
        self.restore(allow_inexact=allow_inexact)
        step, name = self.training.progress.step, about.name_of(self.config)
        distributed.first(lambda: self.folder.rewind(step))
        if step >= self.total:
            self._say(f"{self.folder.path}: {name} is complete, {self.config.epochs} epochs")
            return
        if step:
            self._say(f"{self.folder.path}: {name} goes on at step {step} of {self.total}")
        watch = Watch(self.config, self.method, self.data)
        watch.check_can_keep_best()
        display = Display(
            self.console,
            name,
            epochs=self.config.epochs,
            total=self.total,
            step=step,
            decoding=self.stream.pixels is None,
        )
        with self._loggers(step) as pass_on, display:
            hooks = Hooks(
                log=partial(self._log, display, pass_on),
                after_epoch=partial(self._after_epoch, watch),
                save=self._save,
            )
            try:
                self.train(hooks)
            except NotFinite as e:
                raise self._broken(e) from e
            except Stopped as e:
                raise Stopped(e.number, f"{e}, and saved: `ecpp resume {self.folder.path}` goes on") from None
            finally:
                if distributed.is_main():
                    self._write_unreadable(display)  # where they end the run, too

    def train(self, hooks: Hooks, *, watchful: bool = False) -> None:
        """The steps that are left; `watchful` looks at loss, gradients and weights after each of them."""
        c, t = self.config, self.training
        options = Options(
            epochs=c.epochs,
            pairs_per_image=build.pairs_per_image(c),
            precision=c.precision,
            clip=c.clip,
            accumulate=c.accumulate,
            micro_batch=c.micro_batch,
            log_every=1 if watchful else c.log_every,
            save_every=0.0 if watchful else SAVE_EVERY,
        )
        schedule = build_schedule(c, self.stream.steps_per_epoch)
        train(self.method, self.stream, t.optimizer, t.guard, schedule, t.progress, hooks, options)

    def failure(self, error: NotFinite) -> Failure:
        """What is wrong with the step that stopped the run; every rank looks."""
        return diagnose(self.method, self.stream, error.step, self.config.precision, str(error))

    def _say(self, text: str | None) -> None:
        if text is not None:
            self.console.print(text, highlight=False)

    def _loggers(self, step: int) -> AbstractContextManager[Log]:
        names = (self.config.log or "").split(",") if self.config.log and distributed.is_main() else []
        if not names:
            return nullcontext(lambda record: None)
        return open_loggers(names, self.folder.path, self.config.to_json(), step)

    def _log(self, display: Display, pass_on: Log, record: dict[str, Any]) -> None:
        distributed.first(lambda: self._write(display, pass_on, record))

    def _write(self, display: Display, pass_on: Log, record: dict[str, Any]) -> None:
        self._write_unreadable(display)
        self.folder.append(record)
        pass_on(record)
        display.show(record)

    def _write_unreadable(self, display: Display) -> None:
        while self.unreadable:
            error = self.unreadable.pop(0)
            step = self.training.progress.step
            record = {"kind": "unreadable", "step": step, "name": error.name, "reason": error.reason}
            self.folder.append(record)
            display.say(f"left out: {error.name}: {error.reason}")

    def _after_epoch(self, watch: Watch, epoch: int) -> dict[str, Any]:
        """Measurements and their verdict; the best epoch so far is kept."""
        if self.config.keep_epochs:
            distributed.first(lambda: keep_epoch(self.folder, self.method.encoder, epoch))
        history = self.training.history
        record = as_record(epoch, watch.measure())
        history.records.append(record)
        key = self.config.keep_best
        if key is not None and history.best(key) == epoch:
            state = {
                "method": self.method.state_dict(),
                "step": self.training.progress.step,
                key: record[key],
            }
            distributed.first(lambda: save_checkpoint(state, self.folder.best))
        return record | ({"verdict": history.verdict()} if "rankme" in record else {})

    def _save(self) -> None:
        state = self.training.state()
        distributed.first(lambda: save_checkpoint(state, self.folder.checkpoint, keep=True))

    def _broken(self, error: NotFinite) -> ValueError:
        failure = self.failure(error)
        distributed.first(lambda: write_json(self.folder.failure, failure.to_json()))
        stands = (
            "the last good checkpoint stands" if self.folder.checkpoint.exists() else "none was saved yet"
        )
        advice = "" if failure.views else "A lower --lr or --clip 1, with another --out, usually helps. "
        return ValueError(
            f"{failure.sentence()}. {advice}Of this step nothing was kept, {stands}; "
            f"`ecpp replay {self.folder.path}` runs up to it again, with checks"
        )


def build_schedule(config: Config, steps_per_epoch: int) -> "partial[float]":
    """The learning rate as a function of the step."""
    return partial(
        learning_rate,
        peak=config.lr or 0.0,
        total=config.epochs * steps_per_epoch,
        warmup=round((config.warmup or 0) * steps_per_epoch),
        schedule=config.schedule,
    )
