"""On a GPU the next batch is rendered while the encoder works on this one."""

from collections.abc import Iterator

import torch

from ecpp.views import ViewBatch


def ahead(batches: Iterator[ViewBatch], device: torch.device) -> Iterator[ViewBatch]:
    """The same batches; those on a GPU are made one step early, on a stream of their own."""
    if device.type != "cuda":
        yield from batches
        return
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))  # the images must have arrived

    def following() -> tuple[ViewBatch, torch.cuda.Event] | None:
        with torch.cuda.stream(side):
            batch = next(batches, None)
            return None if batch is None else (batch, side.record_event())

    ready = following()
    while ready is not None:
        batch, rendered = ready
        ready = following()
        here = torch.cuda.current_stream(device)
        here.wait_event(rendered)
        for images in batch.groups:
            images.record_stream(here)  # its memory is not given away too early
        yield batch
