"""Files of embeddings, written as a stream: the same rows make the same bytes."""

import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_CHUNK = 8 << 20  # bytes of embeddings at a time
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the time in every entry of a zip file: none
_ABOUT = "about"


@dataclass(frozen=True)
class Table:
    """Rows that are gone through as often as it takes, and never all in memory."""

    rows: int
    width: int
    numbers: Callable[[], Iterator[int]]  # of the rows' images
    values: Callable[[int], Iterator[Array]]  # the embeddings, so many rows at a time
    name: Callable[[int], str]
    split: Callable[[int], str]
    label: Callable[[int], str] | None  # None where no image has any
    unreadable: Callable[[], Iterator[str]]
    about: dict[str, Any]

    @property
    def size(self) -> int:
        """Rows in a chunk."""
        return max(1, _CHUNK // (4 * self.width))

    def words(self) -> dict[str, Callable[[int], str]]:
        """The columns of text."""
        columns = {"name": self.name, "split": self.split}
        return columns if self.label is None else columns | {"label": self.label}


def write_npz(table: Table, path: Path) -> None:
    """Arrays `name`, `split`, `label` if there are any, `embedding`, `unreadable` and `about`, for np.load."""
    with zipfile.ZipFile(path, "w") as file:
        for column, word in table.words().items():
            _text(file, column, table.rows, partial(_words, table, word))
        with _entry(file, "embedding", "<f4", (table.rows, table.width)) as out:
            for values in table.values(table.size):
                out.write(values.tobytes())
        _text(file, "unreadable", sum(1 for _ in table.unreadable()), table.unreadable)
        about = np.array(json.dumps(table.about))
        with _entry(file, _ABOUT, about.dtype.str, ()) as out:
            out.write(about.tobytes())


def _words(table: Table, word: Callable[[int], str]) -> Iterator[str]:
    return map(word, table.numbers())


def _text(file: zipfile.ZipFile, name: str, rows: int, words: Callable[[], Iterator[str]]) -> None:
    """A column of text is as wide as its longest word, so it is gone through twice."""
    kind = f"<U{max(map(len, words()), default=1) or 1}"
    with _entry(file, name, kind, (rows,)) as out:
        for word in words():
            out.write(np.array(word, dtype=kind).tobytes())


def _entry(file: zipfile.ZipFile, name: str, kind: str, shape: tuple[int, ...]) -> Any:
    out = file.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True)
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out


def write_parquet(table: Table, path: Path) -> None:
    """The columns of `write_npz` and one row per image; what is unreadable stands in the metadata."""
    arrow, parquet = _pyarrow()
    words = table.words()
    kinds = [(column, arrow.string()) for column in words]
    schema = arrow.schema([*kinds, ("embedding", arrow.list_(arrow.float32(), table.width))])
    about = table.about | {"unreadable": list(table.unreadable())}
    with parquet.ParquetWriter(path, schema.with_metadata({"ecpp": json.dumps(about)})) as out:
        numbers = table.numbers()
        for values in table.values(table.size):
            these = list(islice(numbers, len(values)))
            text = [arrow.array(map(word, these), arrow.string()) for word in words.values()]
            flat = arrow.array(values.reshape(-1))
            rows = arrow.FixedSizeListArray.from_arrays(flat, table.width)
            out.write_batch(arrow.record_batch([*text, rows], schema=out.schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError("parquet files need pyarrow: pip install 'ecpp[parquet]', or take .npz") from None
    return pyarrow, pyarrow.parquet


def _about_npz(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        about: dict[str, Any] = json.loads(str(file[_ABOUT]))
    return about


def _about_parquet(path: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(_pyarrow()[1].read_schema(path).metadata[b"ecpp"])
    return about


WRITERS = {".npz": write_npz, ".parquet": write_parquet}
_ABOUTS = {".npz": _about_npz, ".parquet": _about_parquet}


def about_file(path: Path) -> dict[str, Any] | None:
    """What a file of embeddings says of itself; None if it is something else."""
    try:
        return _ABOUTS[path.suffix](path)
    except (ValueError, LookupError, TypeError, OSError, zipfile.BadZipFile):
        return None
