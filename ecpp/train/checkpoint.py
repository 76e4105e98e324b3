"""Checkpoints: written whole or not at all, the last two kept, and read without running anything that is inside."""

import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch


def previous(path: Path) -> Path:
    """Where the checkpoint before the newest one lies."""
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def save_checkpoint(state: dict[str, Any], path: Path, *, keep: bool = False) -> None:
    """Write beside `path`, flush to the disk, then rename: a crash leaves the old file or the new one.

    With `keep` the old one stays too, as the previous one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(temporary, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            if keep and path.exists():
                _keep(path)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except (RuntimeError, OSError) as e:  # torch's own writer says no more than that a position is wrong
        reason = os.strerror(e.errno) if isinstance(e, OSError) and e.errno else str(e).split("\n")[0]
        last = "The last one stands" if path.exists() else "None was written before"
        raise OSError(
            f"could not write the checkpoint {path} ({reason}): is the disk full, or the folder read-only? {last}; "
            "the same command goes on from it"
        ) from e
    _flush_folder(path.parent)


def _keep(path: Path) -> None:
    """The newest becomes the previous one too; at every moment there is a newest."""
    link = path.with_name(f".{path.name}.{os.getpid()}.link.tmp")
    try:
        os.link(path, link)
    except OSError:  # a file system without links
        os.replace(path, previous(path))
        return
    os.replace(link, previous(path))


def _flush_folder(folder: Path) -> None:
    """The rename itself must reach the disk too."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest_good(path: Path) -> tuple[Path | None, str | None]:
    """The newest checkpoint that can be read, and a sentence if that is not the last one; None if there is none."""
    if not path.exists() and not previous(path).exists():
        return None, None
    try:
        load_checkpoint(path)
    except (ValueError, FileNotFoundError) as e:
        if not previous(path).exists():
            raise
        load_checkpoint(previous(path))
        return previous(path), f"{e}; the one before it is used"
    return path, None


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state in `path`; only tensors and plain containers are accepted."""
    try:
        _check_whole(path)
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no checkpoint {path}") from None
    except pickle.UnpicklingError as e:
        raise ValueError(
            f"the checkpoint {path} cannot be read (it holds more than tensors and plain values, and that is never "
            "run): it is damaged or no checkpoint"
        ) from e
    except (
        RuntimeError, EOFError, ValueError, TypeError, LookupError, OSError, struct.error, zipfile.BadZipFile
    ) as e:  # fmt: skip
        reason = str(e).strip().split("\n")[0][:200]
        raise ValueError(
            f"the checkpoint {path} cannot be read ({reason}): it is damaged or no checkpoint"
        ) from e
    if not isinstance(state, dict) or not isinstance(state.get("method", {}), dict):
        raise ValueError(
            f"the checkpoint {path} cannot be read (it holds no state): it is damaged or no checkpoint"
        )
    return state


def _check_whole(path: Path) -> None:
    """The checksums that torch writes and does not read: a flipped bit would be a weight."""
    with zipfile.ZipFile(path) as file:
        damaged = file.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of its part {damaged} is wrong")
