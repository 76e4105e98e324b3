"""Millions of names in two tensors: workers share them whether they are forked or spawned, and never copy them."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class Names:
    """A list of byte strings that cannot be changed. Its memory is that of the bytes, and eight for each name."""

    def __init__(
        self, names: Iterable[bytes] = (), *, text: Tensor | None = None, ends: Tensor | None = None
    ) -> None:
        if text is None or ends is None:
            names = list(names)
            text = torch.frombuffer(bytearray(b"".join(names) or b"\0"), dtype=torch.uint8)
            ends = torch.tensor([0, *map(len, names)], dtype=torch.int64).cumsum(0)
        self.text, self.ends = text, ends  # (bytes,) and (n + 1,): name i is text[ends[i]:ends[i + 1]]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no name {index} among {len(self)}")
        start, stop = self.ends[index : index + 2].tolist()
        return self.text[start:stop].numpy().tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))


# Line breaks and what terminals obey.
_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x2028: "\\u2028", 0x2029: "\\u2029",
}  # fmt: skip


def printable(name: bytes) -> str:
    """A file's name as one line of text that any terminal and any file takes: bytes that are no UTF-8 become \\xNN."""
    text = name.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.translate(_CONTROLS)
