"""What a person sees while training runs."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

WAIT_WORTH_A_WORD = 0.10


class Display:
    """A live line on a terminal; elsewhere one line per epoch and at most one a minute between them."""

    def __init__(
        self, console: Console, name: str, *, epochs: int, total: int, step: int, decoding: bool = False
    ) -> None:
        self.console, self.name, self.epochs, self.decoding = console, name, epochs, decoding
        self.last_line = time.monotonic()
        self.warned = False
        self.waited, self.lines = 0.0, 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(name, total=total, completed=step)

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, record: dict[str, Any]) -> None:
        """Show one record of metrics.jsonl."""
        if record["kind"] == "epoch":
            knn = f"  kNN {record['knn']:.1%}" if "knn" in record else ""
            rank = f"  rank {record['rankme']:.1f}" if "rankme" in record else ""
            verdict = f"  {record['verdict']}" if "verdict" in record else ""
            self._line(
                f"epoch {record['epoch']:>3}/{self.epochs}  loss {record['loss']:.4g}{knn}{rank}  "
                f"{record['seconds']:.0f} s{verdict}"
            )
            return
        text = (
            f"{self.name}  epoch {record['epoch']:.2f}/{self.epochs}  loss {record['loss']:.4g}  lr {record['lr']:.3g}"
            f"  {record['views_per_second']:,.0f} views/s  {record['wait_share']:.0%} waiting"
        )
        self.bar.update(self.task, completed=record["step"], description=text)
        if not self.console.is_terminal and time.monotonic() - self.last_line > 60:
            self._line(text)
        self.waited, self.lines = self.waited + record["wait_share"], self.lines + 1
        waiting = self.waited / self.lines
        if self.decoding and waiting > WAIT_WORTH_A_WORD and self.lines >= 20 and not self.warned:
            self.warned = True
            self._line(
                f"{waiting:.0%} of the time goes into waiting for views: "
                "more --workers help where cores are idle; so does `ecpp pack` with --side, --scaled for large JPEG "
                "files, a smaller --small, or fewer --views"
            )

    def say(self, text: str) -> None:
        """One line above the live one. Names of files are no markup."""
        self.bar.console.print(text, highlight=False, markup=False)

    def _line(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.bar.console.print(text, highlight=False)
