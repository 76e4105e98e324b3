"""Pictures of a run: what its views look like, and which images its encoder finds alike."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from ecpp.config import Config
from ecpp.data import Images, Unreadable, subset
from ecpp.data.crops import Cutter
from ecpp.evaluate import Preprocess, calibrate, features
from ecpp.report import picture_grid
from ecpp.run import build
from ecpp.run.folder import RunFolder
from ecpp.run.resolve import resolve
from ecpp.run.weights import load
from ecpp.views import draw, finish


def views_picture(config: Config, out: Path, *, images: int = 6) -> Path:
    """Draw the K views of the first epoch of a few images, one row per image."""
    if images < 1:
        raise ValueError(f"--images must be at least 1, but is {images}")
    if out.suffix.lower() != ".png":
        raise ValueError(f"the picture is a PNG, so give --out a name that ends in .png, not {out.name!r}")
    train = build.open_data(config).train
    config = resolve(config, train)
    plan = build.build_plan(config)
    mean, std = (torch.tensor(t).view(-1, 1, 1) for t in (plan.mean, plan.std))
    cut = Cutter(train, plan, config.seed)([(0, i) for i in _first_readable(train, images)])
    params = draw(plan, cut.samples, cut.sizes, seed=config.seed, epoch=0)
    batch = finish(plan, cut.crops, cut.samples, params)
    views = [(batch.view(k) * std + mean).mul(255).round().clamp(0, 255).byte() for k in range(plan.k)]
    rows = [
        [_array(_fit(train.read(i), plan.large)), *(_array(view[row]) for view in views)]
        for row, i in enumerate(cut.samples.tolist())
    ]
    columns = [f"{k}: {v.kind} {v.size} px" for k, v in enumerate(plan.views, 1)]
    names = [train.name(i) for i in cut.samples.tolist()]
    return picture_grid(rows, out, row_labels=names, column_labels=["image", *columns])


def _first_readable(images: Images, count: int) -> list[int]:
    """The first few images that can be read; those before them that cannot are named."""
    found: list[int] = []
    for i in range(len(images)):
        try:
            images.read(i)
        except Unreadable as e:
            Console(stderr=True).print(f"left out: {e.name}: {e.reason}", highlight=False, markup=False)
            continue
        found.append(i)
        if len(found) == count:
            break
    if not found:
        raise ValueError("none of the images can be read: `ecpp scan SOURCE` says why")
    return found


def neighbours_picture(
    run: Path, out: Path, *, queries: int = 6, neighbours: int = 6, among: int = 5000
) -> Path:
    """Draw the nearest images of a few held-out ones, by a random encoder and by the run's."""
    folder = RunFolder(run)
    config = folder.resolved()
    data = build.open_data(config)
    bank = subset(data.train, among, config.seed)
    asked = subset(data.train if data.held_out is None else data.held_out, queries, config.seed + 1)
    preprocess = build.build_preprocess(config)
    bf16 = config.precision == "bf16"
    untrained = build.build_encoder(config)
    calibrate(untrained, bank, preprocess, bf16=bf16)
    before, after = (
        _nearest(net, bank, asked, preprocess, neighbours, bf16) for net in (untrained, load(run))
    )
    rows = []
    for i in range(len(asked)):
        found = [bank.read(int(j)) for j in (*before[i], *after[i])]
        rows.append([_array(_fit(x, preprocess.size)) for x in (asked.read(i), *found)])
    columns = ["image", *[f"random {j}" for j in range(1, neighbours + 1)]]
    columns += [f"trained {j}" for j in range(1, neighbours + 1)]
    return picture_grid(rows, out, column_labels=columns, cell=64)


def _nearest(
    net: nn.Module, bank: Images, asked: Images, preprocess: Preprocess, count: int, bf16: bool
) -> Tensor:
    """(queries, count) indices into the bank, the most similar first."""
    sides = [F.normalize(features(net, x, preprocess, bf16=bf16).values, dim=1) for x in (asked, bank)]
    similarity = sides[0] @ sides[1].T
    return similarity.topk(count, dim=1).indices


def _fit(image: Tensor, side: int) -> Tensor:
    """The whole image, its longer side at most `side`."""
    height, width = image.shape[1:]
    scale = min(1.0, side / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]


def _array(image: Tensor) -> np.ndarray:
    if len(image) != 3:  # grey, or the first of many channels
        image = image[:1].expand(3, -1, -1) if len(image) < 3 else image[:3]
    array: np.ndarray = image.permute(1, 2, 0).numpy()
    return array
