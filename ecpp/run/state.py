"""What a checkpoint of a run holds, and what may differ when it goes on."""

import json
from dataclasses import asdict, fields
from typing import Any

import torch

from ecpp import distributed
from ecpp.config import Config
from ecpp.method import Method
from ecpp.train import Guard, Progress
from ecpp.train.health import History


class Training:
    """All that changes while training. The views need no state: they are a function of seed and step."""

    def __init__(
        self, config: Config, method: Method, optimizer: torch.optim.Optimizer, guard: Guard
    ) -> None:
        self.config, self.method, self.optimizer, self.guard = config, method, optimizer, guard
        self.progress, self.history = Progress(), History()
        if distributed.rank():  # dropout is another one on every rank
            torch.manual_seed(config.seed + 1 + 1_000_003 * distributed.rank())

    def state(self) -> dict[str, Any]:
        """To be saved; every rank takes part, for each has random numbers of its own."""
        state = {
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "guard": self.guard.state(),
            "history": json.dumps(self.history.records),
            **asdict(self.progress),
            **circumstances(self.config),
            "rng": distributed.gather_rows(torch.get_rng_state()[None]),
        }
        if self.guard.first_bad.device.type == "cuda":
            state["cuda_rng"] = distributed.gather_rows(torch.cuda.get_rng_state()[None])
        return state

    def restore(self, state: dict[str, Any]) -> None:
        progress = self.progress
        try:
            self.method.load_state_dict(state["method"], strict=True)
            self.optimizer.load_state_dict(state["optimizer"])
            self.guard.restore(state["guard"])
            self.history = History(json.loads(state["history"]))
            for field in fields(progress):
                setattr(progress, field.name, type(getattr(progress, field.name))(state[field.name]))
            torch.set_rng_state(_own(state["rng"]))
            if "cuda_rng" in state and self.guard.first_bad.device.type == "cuda":
                torch.cuda.set_rng_state(_own(state["cuda_rng"]))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as e:
            reason = str(e).strip().split("\n")[0][:200]
            raise ValueError(f"the checkpoint does not belong to this run's config ({reason})") from e


def _own(states: torch.Tensor) -> torch.Tensor:
    return (
        states[distributed.rank() % len(states)].cpu().clone()
    )  # PyTorch crashes on a part of a larger tensor


def circumstances(config: Config) -> dict[str, Any]:
    """What the last bits of all sums depend on."""
    return {
        "threads": torch.get_num_threads(),
        "ranks": distributed.world(),
        "device_kind": torch.device(config.device or "cpu").type,
    }


def check_circumstances(state: dict[str, Any], config: Config, *, allow_inexact: bool) -> str | None:
    """Refuse what would end in other weights, or say what it is."""
    now = circumstances(config)
    changed = [f"{k}: {state[k]} there, {v} now" for k, v in now.items() if k in state and state[k] != v]
    if not changed:
        return None
    what = f"the run would not end with the same weights to the last bit ({'; '.join(changed)})"
    if not allow_inexact:
        raise ValueError(f"{what}: bring that back to go on exactly, or say --allow-inexact")
    return what.replace("would not", "will not")
