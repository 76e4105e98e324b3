"""What ecpp makes of the images of the benchmark, and where its time goes."""

import io
import resource
import statistics
import sys
import time
from contextlib import ExitStack
from unittest.mock import patch

import torch
import torch.nn.functional as F
from PIL import Image
from views_peers import from_jpeg

from ecpp.data import crops as cutting
from ecpp.views import colour, compiled, draw, finish, make, plan, render

JPEG_SIZE = (375, 500)


def photographs(n, height, width):
    """uint8 images with as much of every frequency as photographs have (amplitudes like one over frequency)."""
    g = torch.Generator().manual_seed(0)
    x, side = torch.zeros(n, 3, height, width), 3
    while side < height:
        coarse = torch.rand(n, 3, side, side * width // height, generator=g) - 0.5
        x += F.interpolate(coarse, (height, width), mode="bicubic") * side**-0.6
        side *= 2
    return (x / x.std() * 55 + 120).clamp(0, 255).byte()


def jpegs(n):
    files = []
    for image in photographs(n, *JPEG_SIZE):
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


class Files:
    """JPEGs in memory, as a source."""

    channels = 3

    def __init__(self, data):
        self.data = data

    def encoded(self, i):
        return self.data[i]

    def name(self, i):
        return f"image {i}"

    def read(self, i):
        return cutting.Encoded(self.data[i], self.name(i)).decode()


def make_ecpp(p, kernel="torch", scaled=False):
    def run(images):
        samples = torch.arange(len(images))
        if not isinstance(images[0], bytes):
            return make(p, images, samples, seed=0, epoch=0, kernel=kernel).groups
        cut = cutting.Cutter(Files(images), p, 0, scaled)([(0, i) for i in range(len(images))])
        params = draw(p, samples, cut.sizes, seed=0, epoch=0)
        return finish(p, cut.crops, samples, params, kernel=kernel).groups

    return run


class Stopwatch:
    """Adds up the time spent in some functions, each put in place of the real one; inner ones count once."""

    def __init__(self):
        self.spent, self._inner = {}, [0.0]

    def around(self, name, function):
        def timed(*args, **kwargs):
            self._inner.append(0.0)
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - start
                inner = self._inner.pop()
                self.spent[name] = self.spent.get(name, 0.0) + took - inner
                self._inner[-1] += took

        return timed


def stages(p, size, images, kernel, turns):
    """Seconds per image of each stage; what no stage accounts for is 'rest'."""
    renderer = sys.modules[render.__module__]
    places = [
        ("draw", renderer, "draw"), ("draw", sys.modules[__name__], "draw"), ("draw", cutting, "geometry"),
        ("draw", cutting, "numbers"), ("decode", Files, "read"),
        ("crop", cutting, "crop_views"), ("crop", renderer, "crop_resize_flip"), ("colour", colour, "prepare"),
        ("colour", colour, "apply_"), ("normalise", renderer, "_store"),
        ("crop, colour and normalise", compiled.Painter, "__call__"),
    ]  # fmt: skip
    rounds = []
    for _ in range(turns + 1):
        watch = Stopwatch()
        with ExitStack() as stack:
            for name, where, what in places:
                stack.enter_context(patch.object(where, what, watch.around(name, getattr(where, what))))
            start = time.process_time()
            make_ecpp(p, kernel)(images)
            whole = time.process_time() - start
        rounds.append(watch.spent | {"rest": whole - sum(watch.spent.values()), "whole": whole})
    names = rounds[-1]
    return {name: statistics.median(r[name] for r in rounds[1:]) / len(images) for name in names}


def limits(p, images, turns):
    """Seconds per image of what no pipeline can do without."""
    views = sum(v.size**2 for v in p.views) * 3 * len(images)
    pixels, floats = torch.zeros(views, dtype=torch.uint8), torch.empty(views)
    jobs = {"one read and one write of the pixels": lambda: floats.copy_(pixels)}
    if isinstance(images[0], bytes):
        jobs = {"decoding alone": lambda: [from_jpeg(x) for x in images], **jobs}
    found = {}
    for name, job in jobs.items():
        times = []
        for _ in range(turns + 1):
            start = time.process_time()
            job()
            times.append(time.process_time() - start)
        found[name] = statistics.median(times[1:]) / len(images)
    return found


def show_stages(size, k, n, turns):
    p = plan(k, large=224, small=96) if size > 64 else plan(k, large=32)
    images = jpegs(n) if size > 64 else photographs(n, 32, 32)
    least = limits(p, images, turns)
    bound = sum(least.values())
    print(f"\nStages of ecpp, {'32' if size <= 64 else '224/96'} px, K={k}, one core (µs per image)\n")
    for kernel in ["torch", "compiled"][: 1 + (compiled.available() is None)]:
        found = stages(p, size, images, kernel, turns)
        whole = found.pop("whole")
        parts = ", ".join(f"{name} {s * 1e6:.0f} ({s / whole:.0%})" for name, s in found.items())
        print(f"- {kernel}: {parts}; in all {whole * 1e6:.0f}, {whole / bound:.1f} times the limit")
    print(
        "- the limit: "
        + " + ".join(f"{name} {s * 1e6:.0f}" for name, s in least.items())
        + f" = {bound * 1e6:.0f}"
    )
    run, peak = make_ecpp(p), []
    for _ in range(10):
        run(images)
        peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(
        f"- most memory of the process after 1, 2 and 10 more passes: {peak[0]:.0f}, {peak[1]:.0f}, {peak[9]:.0f} MiB"
    )
