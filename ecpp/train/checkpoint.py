"""Checkpoints: written whole or not at all, and read without running anything that is inside."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import torch


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write beside `path`, flush to the disk, then rename: a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except RuntimeError as e:  # torch's own writer says no more than that a position is wrong
        raise OSError(
            f"could not write the checkpoint {path}: is the disk full? The last one stands ({e})"
        ) from e
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself must reach the disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state in `path`; only tensors and plain containers are accepted."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no checkpoint {path}") from None
    except pickle.UnpicklingError as e:
        raise ValueError(
            f"the checkpoint {path} cannot be read (it holds more than tensors and plain values, and that is never "
            "run): it is damaged or no checkpoint"
        ) from e
    except (RuntimeError, EOFError, ValueError, TypeError, LookupError, OSError, struct.error) as e:
        reason = str(e).strip().split("\n")[0][:200]
        raise ValueError(
            f"the checkpoint {path} cannot be read ({reason}): it is damaged or no checkpoint"
        ) from e
    if not isinstance(state, dict) or not isinstance(state.get("method", {}), dict):
        raise ValueError(
            f"the checkpoint {path} cannot be read (it holds no state): it is damaged or no checkpoint"
        )
    return state
