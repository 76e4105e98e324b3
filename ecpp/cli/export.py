"""`ecpp export`, `ecpp embed` and `ecpp neighbours`: what a trained encoder is for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ecpp.cli.options import WhichEpoch, read

LISTED = 20  # unreadable images that are named on the terminal


@dataclass(frozen=True)
class Export:
    """The encoder of a run for other people's code. The file is loaded back in a fresh process and compared."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    to: Literal["timm", "torchvision", "safetensors", "onnx", "torch-export"]
    """timm and torchvision load with that library alone; safetensors with timm after `import ecpp.model`."""
    out: Path | None = None
    """The file: .safetensors for weights, .onnx, or .pt2 for torch-export. A card, FILE.md, is written beside it."""
    check: Path | None = None
    """Instead of writing, compare this file, which was exported earlier, with the run."""
    epoch: WhichEpoch = None
    """Take the weights of this epoch, or of the best one; None takes the newest."""


@dataclass(frozen=True)
class Embed:
    """The embeddings of all images of a source, as a stream. Called again after a stop, it goes on."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    source: tyro.conf.Positional[str]
    """Images: a folder, a packed store, patterns, torchvision:NAME or hf:NAME."""
    out: Path
    """A .npz for np.load, or a .parquet: name, split, label if there are classes, embedding."""
    workers: int | None = None
    """Processes that decode; None takes as many as the run."""
    epoch: WhichEpoch = None
    """Take the weights of this epoch, or of the best one; None takes the newest."""


@dataclass(frozen=True)
class Neighbours:
    """The images of a source that the encoder finds most like some given ones: a picture, and the same as JSON."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    source: tyro.conf.Positional[str]
    """Images: a folder, a packed store, patterns, torchvision:NAME or hf:NAME."""
    query: tuple[Path, ...]
    """The files of the images to ask about."""
    out: Path
    """The picture, a PNG; the JSON lies beside it."""
    count: int = 8
    """Neighbours of each query."""
    workers: int | None = None
    """Processes that decode; None takes as many as the run."""
    epoch: WhichEpoch = None
    """Take the weights of this epoch, or of the best one; None takes the newest."""


def export(argv: list[str]) -> None:
    options = read(Export, "export", argv)
    from ecpp.export import check_export, export_run

    if (options.out is None) == (options.check is None):
        raise ValueError("give one of --out FILE, to write, and --check FILE, to compare a file with the run")
    if options.check is not None:
        print(f"{options.check}: {check_export(options.run, options.to, options.check, epoch=options.epoch)}")
    elif options.out is not None:
        proof = export_run(options.run, options.to, options.out, epoch=options.epoch)
        print(f"{options.out}: {proof}\n{options.out}.md says how to load it")


def embed(argv: list[str]) -> None:
    options = read(Embed, "embed", argv)
    from ecpp.cli.progress import progress_bar
    from ecpp.run.embed import embed_run

    with progress_bar("embedding") as progress:
        done = embed_run(
            options.run,
            options.source,
            options.out,
            epoch=options.epoch,
            workers=options.workers,
            progress=progress,
        )
    print("\n".join([*done.notes, f"{done.file}: {done.rows:,} embeddings"]))
    if done.unreadable:
        shown = [f"  {line}" for line in done.unreadable[:LISTED]]
        more = len(done.unreadable) - len(shown)
        shown += [f"  … and {more:,} more, all named in the file"] if more else []
        print("\n".join([f"left out, as they cannot be read: {len(done.unreadable):,}", *shown]))


def neighbours(argv: list[str]) -> None:
    options = read(Neighbours, "neighbours", argv)
    from ecpp.cli.progress import progress_bar
    from ecpp.run.neighbours import neighbours as search

    with progress_bar("embedding") as progress:
        picture = search(
            options.run,
            options.source,
            options.query,
            options.out,
            count=options.count,
            epoch=options.epoch,
            workers=options.workers,
            progress=progress,
        )
    print(f"{picture}\n{picture.with_suffix('.json')}")
