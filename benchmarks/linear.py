"""What the linear protocols cost, in forward passes of the encoder over the training set.

    python benchmarks/linear.py [--images 50000] [--encoder resnet18] [--width 64] [--share 0.1] [--cpu]

One forward pass of the encoder over `--images` images of 32 px, as the package does it (bf16, channels last) and in
fp32; then, on as many random features of its width with ten classes, the paper's linear protocol (100 epochs) and the
sweep over 30 settings that chooses on a tenth and trains anew. The forward pass is timed on a share of the
images and the solvers on a share of the epochs, every one three times in turn; medians are scaled up. With `--cpu`
one thread is timed by the processor's own clock: what else runs on the machine counts little.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch

from ecpp.evaluate import LinearProtocol, Preprocess, Sides
from ecpp.evaluate.protocols import FROZEN
from ecpp.model import create_encoder, probe
from ecpp.run.resolve import precision_on

CLASSES, SIZE, BATCH, REPEATS = 10, 32, 256, 3


def seconds(work, clock):
    started = clock()
    work()
    return clock() - started


def forward(encoder, images, bf16):
    preprocess = Preprocess(SIZE, (0.49, 0.48, 0.45), (0.2, 0.2, 0.2))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        for part in torch.split(images, BATCH):
            encoder(preprocess.normalise(part)).float()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument(
        "--share", type=float, default=0.1, help="of the images, and of the epochs, that is timed"
    )
    parser.add_argument("--cpu", action="store_true")
    a = parser.parse_args()
    clock = time.process_time if a.cpu else time.perf_counter
    if a.cpu:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = create_encoder(a.encoder, size=SIZE, width=a.width).eval().to(memory_format=torch.channels_last)
    d = probe(encoder, [SIZE])
    some = round(a.images * a.share / BATCH) * BATCH
    images = torch.randint(0, 256, (some, 3, SIZE, SIZE), dtype=torch.uint8)
    native = precision_on("cpu") == "bf16"
    n = a.images
    labels = torch.randint(0, CLASSES, (n,))
    x = (torch.randn(CLASSES, d)[labels] + torch.randn(n, d)).relu()
    few = slice(0, 10_000)  # stand for the test images
    sides = Sides(x, labels, x[few], labels[few], CLASSES)
    full = LinearProtocol()
    short = replace(full, epochs=max(1, round(full.epochs * a.share)))
    work = {
        "forward pass, bf16": lambda: forward(encoder, images, True),
        "forward pass, fp32": lambda: forward(encoder, images, False),
        "linear": lambda: FROZEN["linear"](sides, short, seed=0, bf16=False),
        "linear-sweep": lambda: FROZEN["linear-sweep"](sides, short, seed=0, bf16=native),
        "linear-sweep, fp32": lambda: FROZEN["linear-sweep"](sides, short, seed=0, bf16=False),
    }
    if not native:
        del work["forward pass, bf16"], work["linear-sweep, fp32"]
    for one in work.values():  # warm
        one()
    times = {name: [] for name in work}
    for _ in range(REPEATS):
        for name, one in work.items():
            times[name].append(seconds(one, clock))
    scale = {name: n / some if "forward" in name else full.epochs / short.epochs for name in work}
    cost = {name: statistics.median(t) * scale[name] for name, t in times.items()}
    print(f"{a.encoder} of width {a.width} ({d} features), {n:,} images, {torch.get_num_threads()} threads\n")
    for name, value in cost.items():
        spread = (max(times[name]) - min(times[name])) * scale[name]
        print(f"{name:<22}{value:8.1f} s   (of {REPEATS}: ± {spread / 2:.1f})")
    once = cost.get("forward pass, bf16", cost["forward pass, fp32"])
    sweep, linear = cost["linear-sweep"], cost["linear"]
    print(f"\nlinear, in forward passes                        {linear / once:.3f}")
    print(f"linear-sweep, in solver times of linear          {sweep / linear:.2f}")
    print(f"linear-sweep with features, in linear with them  {(once + sweep) / (once + linear):.2f}")


if __name__ == "__main__":
    main()
