"""The colour of views by a small C program, an option for CPUs: `kernel.c`, compiled once by the machine's compiler."""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from ecpp.views.draws import Params
from ecpp.views.plan import ViewPlan

# Without -ffast-math: agreement with the other path must not depend on the compiler.
_FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
)


def available() -> str | None:
    """None where the compiled path works, else why it does not."""
    try:
        library()
    except ValueError as e:
        return str(e)
    return None


@cache
def library() -> ctypes.CDLL:
    """The compiled program, built unless this user has built it on this kind of machine before."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    source = files("ecpp.views").joinpath("kernel.c").read_bytes()
    version = _run([*compiler, "--version"])
    key = hashlib.sha256(b"\0".join([source, version, " ".join([*compiler, *_FLAGS]).encode(), _cpu()]))
    path = _folder() / f"kernel-{key.hexdigest()[:24]}.so"
    if not path.exists():
        _build(compiler, source, path)
    try:
        built = ctypes.CDLL(str(path))
    except OSError as e:
        raise ValueError(f"the compiled kernel {path} cannot be loaded ({e}): {_INSTEAD}") from e
    built.ecpp_room.restype = ctypes.c_int64
    return built


_INSTEAD = "mend that, or use the kernel 'torch', which needs no compiler"


def _build(compiler: list[str], source: bytes, path: Path) -> None:
    """Into its place in one step, so that several processes may build at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            text, built = Path(folder, "kernel.c"), Path(folder, "kernel.so")
            text.write_bytes(source)
            _run([*compiler, *_FLAGS, str(text), "-o", str(built), "-lm"])
            built.replace(path)
    except OSError as e:
        raise ValueError(f"the compiled kernel cannot be written to {path.parent} ({e}): {_INSTEAD}") from e


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ValueError(
            f"the kernel 'compiled' needs a C compiler, but `{command[0]}` does not run ({e}): {_INSTEAD}"
        ) from e
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-400:]
        raise ValueError(f"`{shlex.join(command)}` failed: {_INSTEAD}. It said: {said}")
    return done.stdout


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ecpp"


def _cpu() -> bytes:
    """What -march=native looks at: a home folder may be shared by unlike machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join([platform.platform(), platform.machine(), *sorted(told)]).encode()


@dataclass(frozen=True)
class Uncut:
    """Images (n, C, H, W) and the boxes (V·N, 4) and flips (V·N,) of their views; without boxes they are the crops."""

    images: Tensor
    boxes: Tensor | None = None
    flip: Tensor | None = None


class Painter:
    """Crop, jitter, grey, blur, solarize and normalise views of one resolution into `out` (V·N, S, S, C)."""

    def __init__(
        self, plan: ViewPlan, params: Params, row: Tensor, blur_kernel: int | None, out: Tensor
    ) -> None:
        """`row` are the places of the crops; without `blur_kernel` they are only normalised."""
        self._row, self._out, self._blur_kernel = row, out, blur_kernel or 0
        std = torch.tensor(plan.std, dtype=torch.float64)
        mean = torch.tensor(plan.mean, dtype=torch.float64)
        self._look = (1 / std).float(), (-mean / std).float()
        columns = (params.jitter, params.order, params.factors, params.grey, params.sigma, params.solarize)
        self._params = [None if blur_kernel is None else column.contiguous() for column in columns]

    def __call__(self, source: Uncut) -> None:
        """All views of the row, by as many threads as torch has: each view is the work of one alone."""
        images = source.images if source.images.dtype == torch.uint8 else source.images.float()
        boxes, flip = (None if t is None else t.contiguous() for t in (source.boxes, source.flip))
        source = Uncut(images.contiguous(), boxes, flip)
        threads = min(torch.get_num_threads(), len(self._row))
        shares = iter(self._row.tensor_split(1 if threads < 2 else min(len(self._row), 8 * threads)))

        def work() -> None:
            for share in shares:  # whoever is free takes the next
                self._paint(source, share)

        others = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()

    def _paint(self, source: Uncut, places: Tensor) -> None:
        """One thread's share; other threads run meanwhile, as ctypes does not hold the interpreter."""
        kernel, images = library(), source.images
        which = places % len(images)  # as (V, N) lie in one row
        height, width = images.shape[2:]
        size, channels = self._out.shape[2:]
        room = torch.empty(kernel.ecpp_room(*_integers(channels, size, self._blur_kernel, height, width)))
        kernel.ecpp_paint(
            _pointer(images),
            *_integers(images.dtype == torch.uint8, height, width),
            *(_pointer(t) for t in (source.boxes, source.flip)),
            *_integers(len(places)),
            *(_pointer(t) for t in (which, places)),
            *_integers(channels, size),
            *(_pointer(t) for t in self._params),
            *_integers(self._blur_kernel),
            *(_pointer(t) for t in (*self._look, room, self._out)),
        )


def _integers(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="ecpp-views")
