"""Embeddings as a stream: a few batches in memory, however many images there are."""

from collections.abc import Iterator

import torch
from torch import nn

from ecpp.data import Images, by_workers
from ecpp.evaluate.features import Features, Preprocess, _Prepare


@torch.no_grad()
def embeddings(
    encoder: nn.Module,
    images: Images,
    preprocess: Preprocess,
    *,
    start: int = 0,
    batch_size: int = 256,
    workers: int = 0,
) -> Iterator[tuple[int, Features]]:
    """(how many images are done, those of one batch), from image `start` on.

    Batches begin at multiples of `batch_size`, so that a stream that starts later gives the same numbers.
    """
    if start % batch_size and start < len(images):
        raise ValueError(f"a stream starts at a multiple of {batch_size}, not at image {start}")
    encoder.eval()
    device = next(encoder.parameters()).device
    starts = range(start, len(images), batch_size)
    parts = (list(range(i, min(i + batch_size, len(images)))) for i in starts)
    prepared = by_workers(
        _Prepare(images, preprocess),
        parts,
        workers=workers,
        batch_bytes=batch_size * images.channels * preprocess.size**2,
    )
    for i, part in zip(starts, prepared, strict=True):
        values = torch.empty(0, 0)
        if len(part.index):
            values = encoder(preprocess.normalise(part.images.to(device))).float().cpu()
        yield min(i + batch_size, len(images)), Features(values, part.index, part.unreadable)
