"""The columns of a data set of the hub: which hold images, labels and names."""

import re
from typing import Any

import torch
from torch import Tensor

from ecpp.data.names import Names
from ecpp.data.source import number

_IMAGES = ("image", "img")  # which of several columns is taken, best first
_LABELS = ("label", "fine_label")
_ANY_LABELS = (*_LABELS, "labels", "target", "class")


def image_column(features: Any, split: str) -> str:
    from datasets import Image, Value  # type: ignore[import-untyped]

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


def cells(dataset: Any, column: str) -> tuple[Any, str, str | None]:
    """The rows as arrow holds them, and the names of their columns of bytes and of paths."""
    from datasets import Image

    rows, kind = dataset.select_columns([column]), dataset.features[column]
    if isinstance(kind, Image):
        rows = rows.cast_column(column, Image(decode=False))
    elif not isinstance(kind, dict):
        return rows.with_format("arrow"), column, None
    return rows.flatten().with_format("arrow"), f"{column}.bytes", f"{column}.path"


def names(rows: Any, column: str | None, split: str) -> Names:
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


def labels(dataset: Any, split: str) -> tuple[tuple[str, ...], Tensor | None, list[str]]:
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
