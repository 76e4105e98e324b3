"""`ecpp neighbours`: the images of a source that an encoder finds most like some given ones."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ecpp.data import open_source
from ecpp.data.decode import decode
from ecpp.evaluate import Preprocess
from ecpp.evaluate.embed import embeddings
from ecpp.report import picture_grid
from ecpp.run import build
from ecpp.run.embed import All
from ecpp.run.folder import Epoch, RunFolder, write_json
from ecpp.run.pictures import _array, _fit
from ecpp.run.resolve import usable_device
from ecpp.run.weights import load

CELL = 96  # px of a picture in the grid


def neighbours(
    run: Path,
    source: str,
    queries: Sequence[Path],
    out: Path,
    *,
    count: int = 8,
    epoch: Epoch = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Draw the `count` most similar images of each query, by cosine; the same as JSON beside it."""
    if out.suffix.lower() != ".png":
        raise ValueError(f"the picture is a PNG, so give --out a name that ends in .png, not {out.name!r}")
    if not queries:
        raise ValueError("name at least one image: --query IMAGE...")
    if count < 1:
        raise ValueError(f"--count must be at least 1, but is {count}")
    config = RunFolder(run).resolved()
    encoder = load(run, epoch=epoch)
    asked = [_read(path, config.channels) for path in queries]
    images = All(open_source(source, channels=config.channels))
    torch.set_num_threads(config.threads or 1)
    encoder.to(usable_device(None))
    preprocess = build.build_preprocess(config)
    best = Best(_embed(encoder, preprocess, asked), min(count, len(images)))
    workers = (config.workers or 0) if workers is None else workers
    unreadable = 0
    for done, part in embeddings(encoder, images, preprocess, workers=workers):
        unreadable += len(part.unreadable)
        best.see(part.values, part.index)
        progress(done, len(images))
    if not best.index.shape[1]:
        raise ValueError(f"none of the {len(images)} images of {source} can be read")
    found = [_found(images, *row) for row in zip(best.similarity.tolist(), best.index.tolist(), strict=True)]
    rows = [
        [_array(_fit(x, CELL)) for x in (query, *map(images.read, numbers))]
        for query, numbers in zip(asked, best.index.tolist(), strict=True)
    ]
    columns = ["query", *map(str, range(1, best.index.shape[1] + 1))]
    picture_grid(rows, out, row_labels=[p.name for p in queries], column_labels=columns, cell=CELL)
    record = {
        "source": source,
        "images": len(images) - unreadable,
        "unreadable": unreadable,
        "similarity": "cosine of frozen features, every image compared",
        "search": best.search,
        "queries": [{"query": str(p), "neighbours": f} for p, f in zip(queries, found, strict=True)],
    }
    write_json(out.with_suffix(".json"), record)
    return out


class Best:
    """The most similar rows of all that were seen: exact, in constant memory."""

    def __init__(self, queries: Tensor, count: int) -> None:
        self.queries, self.count = F.normalize(queries, dim=1), count
        self.similarity = torch.empty(len(queries), 0)
        self.index = torch.empty(len(queries), 0, dtype=torch.int64)
        self.search = "faiss" if find_spec("faiss") else "torch"

    def see(self, values: Tensor, index: Tensor) -> None:
        if not len(index):
            return
        similarity, place = self._top(F.normalize(values, dim=1))
        similarity = torch.cat([self.similarity, similarity], dim=1)
        numbers = torch.cat([self.index, index[place]], dim=1)
        order = similarity.argsort(dim=1, descending=True, stable=True)[:, : self.count]
        self.similarity, self.index = similarity.gather(1, order), numbers.gather(1, order)

    def _top(self, bank: Tensor) -> tuple[Tensor, Tensor]:
        """(queries, k) similarities and rows."""
        k = min(self.count, len(bank))
        if self.search == "faiss":
            import faiss

            flat = faiss.IndexFlatIP(bank.shape[1])
            flat.add(bank.numpy())
            similarity, place = flat.search(self.queries.numpy(), k)
            return torch.from_numpy(similarity), torch.from_numpy(place)
        top = (self.queries @ bank.T).topk(k, dim=1)
        return top.values, top.indices


def _read(path: Path, channels: int) -> Tensor:
    try:
        return decode(path.read_bytes(), str(path), channels=channels)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no image {path} to ask about") from None


@torch.no_grad()
def _embed(encoder: nn.Module, preprocess: Preprocess, images: list[Tensor]) -> Tensor:
    device = next(encoder.parameters()).device
    batch = torch.cat([preprocess.geometry(image[None]) for image in images])
    out: Tensor = encoder(preprocess.normalise(batch.to(device)))
    return out.float().cpu()


def _found(images: All, similarity: list[float], index: list[int]) -> list[dict[str, Any]]:
    found = []
    for value, i in zip(similarity, index, strict=True):
        one = {"name": images.name(i), "split": images.split(i), "similarity": round(value, 6)}
        found.append(one | ({"label": images.label(i)} if images.labelled else {}))
    return found
