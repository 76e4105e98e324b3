"""Data sets of the Hugging Face hub, and what its library writes on disk: parquet files and saved folders."""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ecpp.data.decode import decode
from ecpp.data.names import Names, printable
from ecpp.data.source import HELD_OUT, Decoded, Splits, check_classes, decode_all, number
from ecpp.data.unreadable import Unreadable

_IMAGES = ("image", "img")  # which of several columns is taken, best first
_LABELS = ("label", "fine_label")
_ANY_LABELS = (*_LABELS, "labels", "target", "class")
_SPLITS = {  # the words in the names of files and folders that the hub knows splits by
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


class HFImages:
    """One split of a `datasets.Dataset`, read from disk row by row."""

    def __init__(self, dataset: Any, split: str, *, channels: int = 3) -> None:
        self.split, self.channels = split, channels
        self.rows, self._data, self._path = _cells(dataset, _image_column(dataset.features, split))
        self.names = _names(self.rows, self._path, split)
        self.classes, self.labels, self.notes = _labels(dataset, split)

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


def _image_column(features: Any, split: str) -> str:
    from datasets import Image, Value

    def is_image(column: str) -> bool:
        kind = features[column]
        if isinstance(kind, dict):  # so the library reads parquet that it did not write
            return {"bytes", "path"} <= kind.keys()
        raw = kind in (Value("binary"), Value("large_binary"))
        return isinstance(kind, Image) or (raw and column in _IMAGES)

    found = [column for column in features if is_image(column)]
    best = [column for column in _IMAGES if column in found] or found
    if len(best) == 1 or (best and best[0] in _IMAGES):
        return best[0]
    raise ValueError(
        f"the split {split} should have one column of images (of type Image, {{bytes, path}}, or binary), or one that "
        f"is called image or img; it has {len(found)} among {', '.join(found or features)}"
    )


def _cells(dataset: Any, column: str) -> tuple[Any, str, str | None]:
    """The rows as arrow holds them, and the names of their columns of bytes and of paths."""
    from datasets import Image

    rows, kind = dataset.select_columns([column]), dataset.features[column]
    if isinstance(kind, Image):
        rows = rows.cast_column(column, Image(decode=False))
    elif not isinstance(kind, dict):
        return rows.with_format("arrow"), column, None
    return rows.flatten().with_format("arrow"), f"{column}.bytes", f"{column}.path"


def _names(rows: Any, column: str | None, split: str) -> Names:
    """The stored paths; the split and the row where there is none, and behind those that come again."""
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    names = places = pc.binary_join_element_wise(split, pa.array(np.arange(len(rows))).cast("string"), " ")
    if column is not None:
        paths = rows.select_columns([column])[:].column(0).cast(pa.string()).combine_chunks()
        # of an absolute path the file's name: the folder belongs to one machine
        paths = pc.replace_substring_regex(pc.fill_null(paths, ""), "^/.*/", "")
        codes = paths.dictionary_encode().indices.to_numpy()
        once = pa.array(np.bincount(codes)[codes] == 1)
        named = pc.if_else(once, paths, pc.binary_join_element_wise(paths, " (", places, ")", ""))
        names = pc.if_else(pc.equal(paths, ""), places, named)
    _, ends, letters = names.buffers()
    ends = torch.tensor(np.frombuffer(ends, np.int32, len(rows) + 1), dtype=torch.int64)
    return Names(text=torch.tensor(np.frombuffer(letters, np.uint8)), ends=ends)


def _label_column(features: Any) -> tuple[str | None, list[str]]:
    """The column of labels, and a note where others could have been it."""
    from datasets import ClassLabel, Value

    found = [c for c in features if isinstance(features[c], ClassLabel)]
    plain = {c: f.dtype for c, f in features.items() if isinstance(f, Value)}
    found = found or [c for c in _ANY_LABELS if re.match("u?int|bool|string|large_string", plain.get(c, ""))]
    taken = next((c for c in _LABELS if c in found), found[0] if len(found) == 1 else None)
    others = ", ".join(c for c in found if c != taken)
    note = f"labels are taken from {taken or 'no column, as none is called label'}; not taken: {others}"
    return taken, [note] if others else []


def _labels(dataset: Any, split: str) -> tuple[tuple[str, ...], Tensor | None, list[str]]:
    """The classes, the number of each row's, and what a person should know. A negative number is no label."""
    import pyarrow as pa

    column, notes = _label_column(dataset.features)
    if column is None:
        return (), None, notes
    values = dataset.select_columns([column]).with_format("arrow")[:].column(0).combine_chunks()
    words = None if pa.types.is_integer(values.type) else values.cast(pa.string()).dictionary_encode()
    cells = (values if words is None else words.indices).cast(pa.int64()).fill_null(-1)
    labels = torch.tensor(cells.to_numpy())
    missing = int((labels < 0).sum())
    if missing:
        if missing < len(labels):
            notes.append(f"no labels are taken of {split}: {missing:,} of its {len(labels):,} rows have none")
        return (), None, notes
    if words is not None:
        classes, places = number(words.dictionary.to_pylist())
        return classes, places[labels], notes
    names = getattr(dataset.features[column], "names", None)
    if names is None:
        distinct, labels = torch.unique(labels, return_inverse=True)
        names = map(str, distinct.tolist())
    return tuple(names), labels, notes
