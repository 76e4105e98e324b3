"""Data sets of the Hugging Face hub, and what its library writes on disk: parquet files and saved folders."""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from ecpp.data.columns import cells, image_column, labels, names
from ecpp.data.decode import decode
from ecpp.data.names import printable
from ecpp.data.source import HELD_OUT, Decoded, Splits, check_classes, decode_all
from ecpp.data.unreadable import Unreadable

_SPLITS = {  # the words in the names of files and folders that the hub knows splits by
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


class HFImages:
    """One split of a `datasets.Dataset`, read from disk row by row."""

    def __init__(self, dataset: Any, split: str, *, channels: int = 3) -> None:
        self.split, self.channels = split, channels
        self.rows, self._data, self._path = cells(dataset, image_column(dataset.features, split))
        self.names = names(self.rows, self._path, split)
        self.classes, self.labels, self.notes = labels(dataset, split)

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return printable(self.names[index])

    def encoded(self, index: int) -> bytes:
        row = self.rows[index]
        data: bytes | None = row.column(self._data)[0].as_py()
        if data is not None:
            return data
        path: str | None = row.column(self._path)[0].as_py() if self._path else None
        try:
            if path and os.path.isfile(path):
                return Path(path).read_bytes()
        except OSError as e:
            raise Unreadable(self._place(index), f"{path}: {e.strerror or e}") from e
        raise Unreadable(self._place(index), f"its row holds no bytes, and {path or 'its path'} is no file")

    def read(self, index: int) -> Tensor:
        return decode(self.encoded(index), self._place(index), channels=self.channels)

    def _place(self, index: int) -> str:
        """What an error calls an image: splits share names, and whoever mends a row needs its number."""
        name, row = self.name(index), f"{self.split} {index}"
        return name if row in name else f"{name} ({row})"

    def in_memory(self) -> Decoded | None:
        return self._decoded

    @cached_property
    def _decoded(self) -> Decoded | None:
        return decode_all(self)


def open_hf(name: str, *, channels: int = 3) -> Splits:
    """`NAME[:CONFIG]` on the hub, or the path of a parquet file, a folder of them or one by `save_to_disk`.

    Held out is the first of test, val, valid and validation that has labels: tests on the hub may lack them.
    """
    parts = _load(name)
    learn = "train" if len(parts) != 1 else next(iter(parts))
    if learn not in parts:
        raise ValueError(f"hf:{name} has the splits {', '.join(parts) or '(none)'}, but none is called train")
    train, test = HFImages(parts.pop(learn), learn, channels=channels), None
    notes = list(train.notes)
    for split in [s for s in HELD_OUT if s in parts]:
        test = HFImages(parts.pop(split), split, channels=channels)
        notes += test.notes
        if test.labels is not None:
            break
        notes.append(f"left out, as it has no labels to count on: the split {split}")
        test = None
    if parts:
        notes.append(f"left out: {', '.join(parts)} of the splits")
    if test is not None and train.labels is not None:
        check_classes(train, test)
    return Splits(train, test, tuple(dict.fromkeys(notes)))


def _load(name: str) -> dict[str, Any]:
    """The splits that have rows, by name."""
    path = Path(os.path.expanduser(name))
    if not path.exists():
        repository, _, config = name.partition(":")
        if not repository or repository[0] in "~./" or repository.count("/") > 1 or ".parquet" in name:
            raise FileNotFoundError(f"there is no file or folder {name}: give one, or OWNER/NAME on the hub")
        with _library(name, "Check its name, the network and your access to it") as datasets:
            loaded = datasets.load_dataset(repository, config or None)
    elif (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        with _library(name, "It should be as save_to_disk left it") as datasets:
            loaded = datasets.load_from_disk(str(path))
    else:
        files = _parquet_files(path)
        with _library(name, "The files of a split must be whole and have the same columns") as datasets:
            # In the library's cache, any row is found at once. A split of its own may lack columns that others have.
            load = datasets.load_dataset
            loaded = {s: load("parquet", data_files={s: found}, split=s) for s, found in files.items()}
    if isinstance(loaded, datasets.Dataset):
        loaded = {str(loaded.split or "train"): loaded}
    if not isinstance(loaded, dict) or not all(isinstance(d, datasets.Dataset) for d in loaded.values()):
        kind = type(loaded).__name__
        raise ValueError(f"hf:{name} is a {kind}, but rows have numbers in a Dataset or DatasetDict alone")
    return {split: d for split, d in loaded.items() if len(d)}


@contextmanager
def _library(name: str, advice: str) -> Iterator[Any]:
    """The library, without its progress bars; what it raises becomes one sentence."""
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as e:
        raise ValueError(f"hf:{name} needs the library datasets ({e}): pip install 'ecpp[hf]'") from None
    errors = datasets.exceptions
    failures: tuple[Any, ...] = (OSError, ValueError, LookupError, RuntimeError, errors.DatasetsError)
    if hasattr(datasets.load, "httpx"):  # before it there was requests, whose errors are OSErrors
        failures += (datasets.load.httpx.HTTPError,)
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    except failures as e:
        known = e.__cause__ if type(e) is errors.DatasetGenerationError else e  # which itself says nothing
        reason = " ".join(str(known).split())[:300].rstrip(".") or type(e).__name__
        raise ValueError(f"datasets could not open hf:{name}: {reason}. {advice}") from e
    finally:
        if bars:
            datasets.enable_progress_bars()


def _parquet_files(path: Path) -> dict[str, list[str]]:
    """The parquet files at or below a path, by split, as patterns: so the library takes them."""
    root, files = (path.parent, [path]) if path.is_file() else (path, sorted(path.rglob("*")))
    splits: dict[str, list[str]] = {}
    for file in files:
        inner = file.relative_to(root)
        hidden = any(part.startswith(".") for part in inner.parts)
        if file.suffix.lower() == ".parquet" and file.is_file() and not hidden:
            splits.setdefault(_split_of(inner), []).append(glob.escape(os.path.abspath(file)))
    if not splits:
        raise ValueError(
            f"{path} is no parquet file, holds none and was not written by save_to_disk: give one of these, "
            "or a folder of images without hf:"
        )
    return splits


def _split_of(file: Path) -> str:
    """The split that a file's name tells, or else the nearest folder's; what tells none is to learn from."""
    parts = (file.stem, *reversed(file.parts[:-1]))
    words = (word for part in parts for word in re.split(r"[\W\d_]+", part.lower()))
    return next((_SPLITS[word] for word in words if word in _SPLITS), "train")
