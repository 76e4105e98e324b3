"""BYOL×4 in a loop of your own: ecpp's method and views, everything else PyTorch's.

python examples/plain_loop.py
"""

import torch

import ecpp
from ecpp import views
from ecpp.data import open_source
from ecpp.model import create_encoder, mlp


def main(steps: int = 40) -> float:
    """Train for some steps on generated images; returns the last loss."""
    torch.manual_seed(0)
    images = open_source("patterns:512").train.in_memory().pixels  # any uint8 tensor (n, 3, H, W) does
    plan = views.plan(4, large=32, small=20)
    encoder = create_encoder("resnet10", size=32, width=8)
    dim = encoder.num_features
    method = ecpp.BYOL(
        encoder,
        projector=mlp(dim, dim, 64, layers=2, final_bn=False),
        predictor=mlp(64, dim, 64, layers=2, final_bn=False),
    )
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    for step in range(steps):
        samples = torch.randint(0, len(images), (64,))
        batch = views.make(plan, images[samples], samples, seed=0, epoch=step)
        loss, metrics = method(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step(step / steps)  # the target follows
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}, spread {metrics['embedding_std'].item():.3f}")
    return loss.item()


if __name__ == "__main__":
    main()
