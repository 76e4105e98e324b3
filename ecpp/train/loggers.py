"""Where metrics go besides metrics.jsonl: TensorBoard and Weights & Biases, each an extra."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

Log = Callable[[dict[str, Any]], None]


@contextmanager
def open_loggers(names: list[str], folder: Path, config: dict[str, Any], step: int) -> Iterator[Log]:
    """A function that hands each record on; a run that goes on at `step` continues its curves."""
    with ExitStack() as stack:
        logs = []
        for name in names:
            log, close = {"tensorboard": _tensorboard, "wandb": _wandb}[name](folder, config, step)
            stack.callback(close)
            logs.append(log)

        def log_all(record: dict[str, Any]) -> None:
            for log in logs:
                log(record)

        yield log_all


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """The single numbers of a record by name: step/loss, epoch/knn."""
    return {
        f"{record['kind']}/{k}": v
        for k, v in record.items()
        if isinstance(v, int | float) and k not in ("step", "epoch")
    }


def _tensorboard(folder: Path, config: dict[str, Any], step: int) -> tuple[Log, Callable[[], None]]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as e:
        raise ValueError("--log tensorboard needs an extra: pip install 'ecpp[tensorboard]'") from e
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(record: dict[str, Any]) -> None:
        for name, value in _numbers(record).items():
            writer.add_scalar(name, value, record["step"])

    return log, writer.close


def _wandb(folder: Path, config: dict[str, Any], step: int) -> tuple[Log, Callable[[], None]]:
    try:
        import wandb
    except ImportError as e:
        raise ValueError("--log wandb needs an extra: pip install 'ecpp[wandb]'") from e
    kept = folder / "wandb-id"
    name = kept.read_text().strip() if kept.exists() else secrets.token_hex(4)
    run = wandb.init(
        project="ecpp", name=folder.name, id=name, resume="allow", dir=str(folder), config=config
    )
    kept.write_text(name + "\n")

    def log(record: dict[str, Any]) -> None:
        run.log(_numbers(record) | {"step": record["step"]})

    return log, run.finish
