"""`ecpp scan` and `ecpp pack`: what is in a source, and the same in a form that opens at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from ecpp.cli.options import read
from ecpp.cli.progress import progress_bar

LISTED = 20  # names or groups of names in a list on the terminal


@dataclass(frozen=True)
class Scan:
    """Decode every image and report sizes, colours, classes, duplicates and files that cannot be read."""

    source: tyro.conf.Positional[str]
    """A folder of images, a packed store, patterns, torchvision:NAME or hf:NAME."""
    json: Path | None = None
    """A file for the whole report, with every name."""
    limit: int | None = None
    """Look at this many images of each split, taken at random, of every class alike; None takes all."""
    channels: int = 3
    """3 for colour, 1 for grey, otherwise the files' own number."""
    classes: Path | None = None
    """A file that lists the classes to take, one a line."""
    workers: int | None = None
    """Processes that decode; None takes one per core, at most 8."""
    near: int = 4
    """Pictures are near duplicates if at most this many bits of 64 differ: 0 to 8."""


@dataclass(frozen=True)
class Pack:
    """Decode every image once and write them into one store, which is a SOURCE that opens in a second."""

    source: tyro.conf.Positional[str]
    """A folder of images, patterns, torchvision:NAME or hf:NAME."""
    dst: tyro.conf.Positional[Path]
    """The folder to make."""
    store: Literal["pixels", "jpeg"] | None = None
    """pixels are exact, jpeg is small and keeps JPEG files as they are; None takes pixels for small images."""
    side: int | None = None
    """Bring the shorter side of larger images down to this."""
    quality: int = 95
    """Of JPEGs that are written anew."""
    channels: int = 3
    """3 for colour, 1 for grey, otherwise the files' own number."""
    classes: Path | None = None
    """A file that lists the classes to take, one a line."""
    workers: int | None = None
    """Processes that decode; None takes one per core, at most 8."""


def scan(argv: list[str]) -> None:
    options = read(Scan, "scan", argv)
    file = options.json
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise ValueError(f"--json {file} is no file in a folder that exists: make its folder first")
    from ecpp.data.scan import scan as look
    from ecpp.run.folder import write_json

    with progress_bar("scanning") as progress:
        report = look(
            options.source,
            limit=options.limit,
            channels=options.channels,
            classes=options.classes,
            workers=options.workers,
            near=options.near,
            progress=progress,
        )
    if file is not None:
        write_json(file, report)
    _print_scan(report, str(file or "--json FILE"))


def pack(argv: list[str]) -> None:
    options = read(Pack, "pack", argv)
    from ecpp.data.pack import pack as write

    with progress_bar("packing") as progress:
        report = write(
            options.source,
            options.dst,
            store=options.store,
            side=options.side,
            quality=options.quality,
            channels=options.channels,
            classes=options.classes,
            workers=options.workers,
            progress=progress,
        )
    counts = " and ".join(f"{n:,} images of {name}" for name, n in report.counts.items())
    lines = [*report.notes, f"{options.dst}: {counts} as {report.store}, {report.bytes / 1e6:,.1f} MB"]
    if report.unreadable:
        lines.append(f"left out, as they cannot be read: {len(report.unreadable):,}")
        bad = [f"{u['split']}/{u['name']}: {u['reason']}" for u in report.unreadable]
        lines += _first(bad, str(options.dst / "unreadable.json"))
    _print(lines)


def _print(lines: Iterable[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)  # a file's name is no markup
    for line in lines:
        console.print(line)


def _first(lines: list[str], where: str) -> list[str]:
    """The first lines of a list, and where the others are."""
    shown = [f"  {line}" for line in lines[:LISTED]]
    return shown + ([f"  … and {len(lines) - LISTED:,} more, all in {where}"] if len(lines) > LISTED else [])


def _print_scan(report: dict[str, Any], where: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", *report["splits"])
    rows = [_rows(split) for split in report["splits"].values()]
    for name in rows[0]:
        if any(row[name] for row in rows):
            table.add_row(name, *(Text(row[name]) for row in rows))
    Console().print(table)
    _print(report["notes"])
    for name, split in report["splits"].items():
        if split["unreadable"]:
            _print([f"cannot be read in {name}: {len(split['unreadable']):,}"])
            _print(_first([f"{u['name']}: {u['reason']}" for u in split["unreadable"]], where))
    exact, near = report["duplicates"]["exact"], report["duplicates"]["near"]
    _print(_groups("equal pictures", exact, where))
    _print(_groups(f"pictures alike, but for {near['bits']} of 64 bits", near, where))
    if near["too_plain"]:
        _print([f"too plain to be compared with others that are alike: {near['too_plain']:,} images"])


def _rows(split: dict[str, Any]) -> dict[str, str]:
    """The lines of the table for one split; empty where there is nothing to say."""
    rows = {"images": f"{split['images']:,}", "cannot be read": f"{len(split['unreadable']):,}"}
    files, sizes, classes = split["files"], split["sizes"], split["classes"]
    for key, name in (("formats", "formats"), ("modes", "modes")):
        rows[name] = "" if files is None else ", ".join(f"{k} {n:,}" for k, n in files[key].items())
    for key, name in (
        ("rotated", "turned upright by EXIF"),
        ("animated", "of several frames, of which the first counts"),
        ("transparent", "transparent, laid on white"),
    ):
        rows[name] = "" if files is None or not files[key] else f"{files[key]:,}"
    for key in ("height", "width", "megapixels"):
        rows[f"{key}: least, median, most"] = "" if sizes is None else _three(sizes[key])
    common = [] if sizes is None else sizes["common"]
    rows["sizes"] = "" if sizes is None else f"{sizes['different']:,}"
    rows["most common"] = "\n".join(f"{c['height']}×{c['width']}: {c['images']:,}" for c in common)
    rows["shorter side below 32 px"] = "" if sizes is None else f"{sizes['below_32']:,}"
    for key in ("mean", "std"):
        rows[key] = "" if split[key] is None else " ".join(f"{v:.4f}" for v in split[key])
    if classes is not None:
        counts = classes.values()
        rows["classes"] = f"{len(classes):,} of {min(counts):,} to {max(counts):,} images"
    else:
        rows["classes"] = ""
    return rows


def _three(spread: dict[str, float]) -> str:
    return ", ".join(f"{spread[key]:,.4g}" for key in ("min", "median", "max"))


def _groups(what: str, found: dict[str, Any], where: str) -> list[str]:
    if not found["groups"]:
        return [f"{what}: none"]
    lines = [f"{what}: {len(found['groups']):,} groups, {found['copies']:,} images more than there need be"]
    if found["test_in_train"]:
        lines.append(
            f"  {found['test_in_train']:,} images of test are in train, too: an accuracy on them says little"
        )
    groups = [" = ".join(f"{split}/{name}" for split, name in group[:4]) for group in found["groups"]]
    more = [f", … {len(g) - 4:,} more" if len(g) > 4 else "" for g in found["groups"]]
    return lines + _first([a + b for a, b in zip(groups, more, strict=True)], where)
