"""Where the time of a training step goes: views, forward, backward, optimizer and the rest.

python benchmarks/step.py SOURCE [--steps 30] [--threads 2]

SOURCE is any source whose images lie in memory, CIFAR-10 say. Two settings: ResNet-18 with K=4, and the ResNet-10 of
width 16 with K=8, both with 64 images per step. On a CPU rendering takes its time from the encoder; on a GPU views are
rendered on a stream of their own, so what is printed of them is the time in which nothing else could be asked for.
"""

import argparse
import time
from collections import Counter

import torch
from rich.console import Console
from rich.table import Table

from ecpp.config import Config
from ecpp.run import build
from ecpp.run.resolve import resolve
from ecpp.train import build_optimizer

PARTS = ("views", "forward", "backward", "optimizer", "rest")
SETTINGS = (("resnet18", None, 4), ("resnet10", 16, 8))
WARM_UP = 5  # steps that are not measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    table = Table("encoder", "K", "ms/step", *PARTS, "outside")
    for encoder, width, k in SETTINGS:
        config = Config(source=options.source, encoder=encoder, width=width, views=k, threads=options.threads)
        took = measure(config, options.steps)
        total = sum(took.values())
        outside = took["views"] + took["rest"]
        name = encoder if width is None else f"{encoder}, width {width}"
        shares = [f"{took[part] / total:.1%}" for part in PARTS]
        table.add_row(name, str(k), f"{1000 * total / options.steps:.0f}", *shares, f"{outside / total:.1%}")
    Console(width=100).print(table)
    print("outside: of forward, backward and optimizer")
    print(
        f"{options.steps} steps after {WARM_UP}; {torch.get_num_threads()} threads; torch {torch.__version__}"
    )


def measure(config: Config, steps: int) -> Counter[str]:
    """Seconds of each part over so many steps, as `ecpp pretrain` does them."""
    data = build.open_data(config)
    config = resolve(config, data.train)
    torch.set_num_threads(config.threads or 1)
    method = build.build_method(config)
    stream = build.build_stream(config, data.train, lambda error: None)
    optimizer = build_optimizer(
        config.optimizer,
        method,
        lr=config.lr or 0.0,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    device, bf16 = stream.device, config.precision == "bf16"
    method.train()
    took: Counter[str] = Counter()
    total = WARM_UP + steps
    batches = stream.batches(0, total)
    for step in range(total):
        clock = Clock(device, took if step >= WARM_UP else Counter())
        batch = next(batches)
        clock.lap("views")
        for group in optimizer.param_groups:
            group["lr"] = config.lr
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            result = method(batch)
        clock.lap("forward")
        optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        torch.autograd.backward(result.loss)
        clock.lap("backward")
        optimizer.step()
        clock.lap("optimizer")
        method.after_step(step / total)
        result.loss.item()
        clock.lap("rest")
    return took


class Clock:
    """Adds the time since it was last asked to a part of the step."""

    def __init__(self, device: torch.device, took: Counter[str]) -> None:
        self.device, self.took, self.last = device, took, time.perf_counter()

    def lap(self, part: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.took[part] += now - self.last
        self.last = now


if __name__ == "__main__":
    main()
