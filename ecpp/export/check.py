"""An exported file against the run it came from: loaded by its own call in a fresh process, and compared."""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ecpp
from ecpp.export import fresh, writers
from ecpp.export.formats import Format
from ecpp.export.trained import Trained

TOLERANCE = 1e-5  # of the largest feature


@dataclass(frozen=True)
class Proof:
    """What a file that passed was found to be."""

    weights: int  # that are the run's, bit for bit: all of them
    difference: float  # the largest of the features, relative to the largest feature
    batches: tuple[tuple[int, ...], ...]  # the shapes of the images that were compared

    def __str__(self) -> str:
        shapes = ", ".join("×".join(map(str, shape)) for shape in self.batches)
        return (
            f"{self.weights}/{self.weights} keys match; largest relative difference of the features "
            f"{self.difference:.1e}, on images of {shapes}, loaded by its own call in a fresh process"
        )


def verify(file: Path, format_: Format, t: Trained) -> Proof:
    """The proof that `file` holds the run's encoder; a ValueError says what is wrong with it."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file} to check")
    sizes = t.sizes if format_.any_size else t.sizes[:1]
    batches = [t.inputs(n, size) for size in sizes for n in ((1, 3) if size == t.sizes[0] else (2,))]
    with torch.inference_mode():
        expected = [t.encoder(images) for images in batches]
    if not all(torch.isfinite(f).all() and f.abs().max() > 0 for f in expected):
        raise ValueError(
            "the run's encoder gives features that are not finite, or all 0: there is nothing to export"
        )
    found, weights = _load_elsewhere(file, format_, t, batches)
    try:
        metadata = format_.metadata(file)
    except ValueError as e:
        raise _damaged(file, f"its metadata cannot be read ({_line(str(e))})") from e
    if metadata is None or not _same(metadata, t.metadata()):
        raise _damaged(file, "its metadata are not this run's")
    matched = _compare_weights(file, format_, t, weights)
    difference = max(_difference(file, a, b) for a, b in zip(found, expected, strict=True))
    if not difference <= TOLERANCE:
        raise _damaged(
            file, f"its features differ by {difference:.1e} of the largest, and {TOLERANCE:.0e} is allowed"
        )
    return Proof(matched, difference, tuple(tuple(images.shape) for images in batches))


def _damaged(file: Path, reason: str) -> ValueError:
    return ValueError(f"{file.name} does not hold the run's encoder: {reason}")


def _line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no word"


def _load_elsewhere(
    file: Path, format_: Format, t: Trained, batches: list[Tensor]
) -> tuple[list[Tensor], dict[str, str]]:
    """Features and digests of the weights, from a process that starts in an empty folder with the file in it."""
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        shutil.copyfile(file, room / file.name)
        shutil.copyfile(fresh.__file__, room / "fresh.py")
        for number, images in enumerate(batches):
            np.save(room / f"images{number}.npy", images.numpy())
        request = {
            "load": format_.load(t, file.name),
            "use": format_.use,
            "batches": len(batches),
            "package": str(Path(ecpp.__file__).resolve().parents[1]),
        }
        (room / "request.json").write_text(json.dumps(request))
        done = subprocess.run(
            [sys.executable, "fresh.py"], cwd=room, capture_output=True, text=True, errors="replace", check=False
        )  # fmt: skip
        if done.returncode or not (room / "answer.json").exists():
            reason = (
                _line(done.stderr) if done.returncode > 0 else f"the process ended with {done.returncode}"
            )
            raise _damaged(file, f"the call that loads it fails ({reason})")
        answer: dict[str, Any] = json.loads((room / "answer.json").read_text())
        found = [torch.from_numpy(np.load(room / f"features{n}.npy")) for n in range(len(batches))]
    return found, answer["weights"]


def _compare_weights(file: Path, format_: Format, t: Trained, found: dict[str, str]) -> int:
    """How many weights there are, all of them the run's."""
    expected = {k: fresh.digest(v.detach().numpy()) for k, v in t.encoder.state_dict().items()}
    if format_.suffix == ".onnx":  # a graph has no use for how many batches a BatchNorm has seen
        expected = {k: v for k, v in expected.items() if not k.endswith("num_batches_tracked")}
        held = writers.onnx_weights(file)
        found = {k: fresh.digest(v.numpy()) for k, v in held.items() if k in expected}
    wrong = [k for k, v in expected.items() if found.get(k) != v] + sorted(found.keys() - expected.keys())
    if wrong:
        right = sum(found.get(k) == v for k, v in expected.items())
        raise _damaged(file, f"{right}/{len(expected)} keys match; not the run's: {', '.join(wrong[:3])}")
    return len(expected)


def _difference(file: Path, found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        raise _damaged(file, f"its features are {tuple(found.shape)}, the run's {tuple(expected.shape)}")
    return float((found - expected).abs().max() / expected.abs().max())


def _same(found: str, expected: str) -> bool:
    """Whether two metadata say the same of the encoder and its input; a run may have been evaluated since."""
    try:
        a, b = json.loads(found), json.loads(expected)
        return bool(a["timm"] == b["timm"] and a["preprocess"] == b["preprocess"])
    except (ValueError, LookupError, TypeError):
        return False
