"""What a setting means and costs, in words and numbers."""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from ecpp.config import Config
from ecpp.method import METHODS
from ecpp.objective.pairs import GRAPHS, count
from ecpp.run import build
from ecpp.run.measure import STEPS, measure
from ecpp.run.resolve import resolve, resolve_views
from ecpp.views import View


def explain(config: Config) -> None:
    """Print the views, pairs and cost of a config; with a source, also the steps and view passes of a run."""
    console = Console(highlight=False)
    images = None
    if config.source:
        images = build.open_data(config).train
        config = resolve(config, images)
    else:
        config = resolve_views(config, config.large or 224)
    plan = build.build_plan(config)
    table = Table("view", "kind", "side", "crop", "flip", "colour")
    for i, view in enumerate(plan.views, 1):
        crop = "{:.0%} to {:.0%}".format(*view.crop_scale)
        table.add_row(str(i), view.kind, f"{view.size} px", crop, f"{view.flip_p:.0%}", _colour(view))
    console.print(table)
    graphs = ", ".join(f"{name} {count(graph(plan.k))}" for name, graph in GRAPHS.items())
    pairs = build.pairs_per_image(config)
    console.print(f"pairs per image: {pairs} ({config.pairing}; {graphs})")
    console.print(
        f"encoder work per image: {plan.relative_compute:.4g} passes of a {plan.large}-px view, "
        f"{plan.relative_compute / 2:.3g} times that of two views; {pairs / plan.relative_compute:.3g} pairs per pass"
    )
    if "ema" in METHODS[config.method].options:
        passes = plan.relative_compute if config.target_views == "all" else len(plan.groups[0][1])
        console.print(f"the target's own work per image: {passes:.4g} passes, without a backward pass")
    if plan.k > 2 and len(plan.groups) == 1:
        console.print(
            f"all views are of {plan.large} px: a smaller --small makes the {plan.k - 2} extra ones cheap"
        )
    console.print(
        f"learning rate {config.lr:g} after {config.warmup:g} epochs of warm-up, {config.schedule}, "
        f"{config.optimizer}; pairs are {'summed' if config.pair_reduction == 'sum' else 'averaged'}"
    )
    if images is not None:
        steps = len(images) // config.batch_size * config.epochs
        if not steps:
            raise ValueError(f"a batch of {config.batch_size} is larger than the {len(images)} images")
        seen = steps * config.batch_size
        console.print(
            f"{len(images):,} images, {config.epochs} epochs: {steps:,} steps of {config.batch_size} images, "
            f"{seen * plan.k:,} view passes, {seen * pairs:,} pairs"
        )


def candidates(config: Config, texts: Sequence[str]) -> list[Config]:
    """The settings that --measure names, each with other views."""
    found = [_candidate(config, text) for text in texts]
    if not config.source:
        raise ValueError(
            "--measure takes steps with real images: name them, as in `ecpp plan SOURCE --measure`"
        )
    return found


def explain_costs(config: Config, settings: Sequence[Config]) -> None:
    """Print what each of some settings costs here, from a few steps of each."""
    console = Console(highlight=False)
    table = Table(
        "K", "small", "step", "epoch", "epochs a day", f"{config.epochs} epochs", "memory", "pairs a second"
    )
    for one in settings:
        cost = measure(one)
        images = one.batch_size / cost.step_seconds
        table.add_row(
            str(one.views),
            f"{one.small} px" if one.small else "as large" if one.views > 2 else "none",
            _seconds(cost.step_seconds),
            _seconds(cost.epoch_seconds),
            f"{86_400 / cost.epoch_seconds:,.0f}",
            _seconds(cost.epoch_seconds * one.epochs),
            f"{cost.memory / 2**20:,.0f} MiB",
            f"{images * build.pairs_per_image(one):,.0f}",
        )
    console.print(table)
    console.print(
        f"from {STEPS} steps of each; the measurements after each epoch and checkpoints come on top"
    )


def _candidate(config: Config, text: str) -> Config:
    """`6` or `6x20`: the config with that many views, and with small ones of that size."""
    views, _, small = text.partition("x")
    if not (views.isdecimal() and (small.isdecimal() or "x" not in text)):
        raise ValueError(
            f"--measure takes numbers of views, or with a size of small ones as in 6x20, not {text!r}"
        )
    k = int(views)
    n_simclr = config.n_simclr if k == config.views else None
    return replace(
        config, views=k, n_simclr=n_simclr, small=int(small) if small else config.small if k > 2 else None
    )


def _seconds(value: float) -> str:
    """As a person says it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= 2 * length:
            return f"{value / length:,.3g} {unit}"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _colour(view: View) -> str:
    c = view.colour
    if c is None:
        return "none"
    parts = [
        f"jitter {c.jitter_p:.0%} ({c.brightness:g} {c.contrast:g} {c.saturation:g} {c.hue:g})",
        f"grey {c.grey_p:.0%}",
    ]
    if c.blur_p:
        parts.append(f"blur {c.blur_kernel} {c.blur_p:.0%}")
    if c.solarize_p:
        parts.append(f"solarize {c.solarize_p:.0%}")
    return ", ".join(parts)
