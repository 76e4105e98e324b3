"""Draws docs/picture.png: six views of one image and the fifteen pairs between them.

python docs/draw_picture.py
"""

import math
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from ecpp import views
from ecpp.data import patterns

IMAGE, SIDE = 1, 128  # a generated image, drawn larger than in training so that it prints well
PLACES = [(math.cos(a), math.sin(a)) for a in (math.radians(90 + 60 * (k + 0.5)) for k in range(6))]


def main() -> Path:
    out = Path(__file__).with_name("picture.png")
    plan = views.plan(6, large=128, small=80, look=views.CIFAR)
    image = patterns.render([IMAGE], size=SIDE)
    batch = views.make(plan, image, torch.tensor([IMAGE]), seed=3, epoch=0)
    mean, std = (torch.tensor(t).view(3, 1, 1) for t in (plan.mean, plan.std))
    figure, axes = plt.subplots(figsize=(9, 4.2), dpi=130)
    axes.set_xlim(-4.6, 4.2)
    axes.set_ylim(-1.75, 1.75)
    axes.axis("off")

    def show(pixels, x, y, side):
        extent = (x - side / 2, x + side / 2, y - side / 2, y + side / 2)
        axes.imshow(pixels.permute(1, 2, 0).numpy(), extent=extent, zorder=3, aspect="auto")

    show(image[0], -3.3, 0, 1.5)
    axes.text(-3.3, -1.0, "one image", ha="center", fontsize=11)
    axes.annotate("", (-1.15, 0), (-2.4, 0), arrowprops={"arrowstyle": "->", "lw": 1.6, "color": "0.35"})
    centres = [(0.9 + 1.35 * x, 1.2 * y) for x, y in PLACES]
    for i, j in combinations(range(6), 2):
        (x0, y0), (x1, y1) = centres[i], centres[j]
        axes.plot([x0, x1], [y0, y1], color="#1f6f8b", alpha=0.55, lw=1.5, zorder=1)
    for k, (view, (x, y)) in enumerate(zip(plan.views, centres, strict=True)):
        show((batch.view(k)[0] * std + mean).clamp(0, 1), x, y, 0.85 * view.size / 128)
    axes.set_aspect("equal")
    notes = [
        "2 large SimCLR views",
        "1 small SimCLR view",
        "3 small views, only cropped",
        "15 pairs, and each one teaches",
    ]
    for row, note in enumerate(notes):
        axes.text(2.85, 0.5 - 0.36 * row, note, fontsize=10, va="center", weight="bold" if row == 3 else None)
    figure.savefig(out, bbox_inches="tight", pad_inches=0.05, facecolor="white")
    return out


if __name__ == "__main__":
    print(main())
