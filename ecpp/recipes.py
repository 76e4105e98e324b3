"""The paper's settings (App. A), as functions that return a config."""

from dataclasses import replace

from ecpp.config import Config


def cifar10(source: str = "torchvision:CIFAR10") -> Config:
    """CIFAR-10: ResNet-50 with the small stem, all views of 32 px, pairs summed."""
    return Config(
        source=source,
        encoder="resnet50",
        large=32,
        small=32,
        look="cifar",
        projector_layers=2,
        pair_reduction="sum",
        warmup=10,
        weight_decay=1e-4,
    )


def imagenet100(source: str) -> Config:
    """ImageNet-100: as CIFAR-10, but two views of 224 px and the others of 96, and a deeper projector."""
    return replace(cifar10(source), large=224, small=96, look="imagenet", projector_layers=3)


def imagenet1k(source: str) -> Config:
    """ImageNet-1K: as ImageNet-100 but for the weight decay, six views and 200 epochs (Table 6)."""
    return replace(imagenet100(source), views=6, epochs=200, weight_decay=2e-5)


RECIPES = {"cifar10": cifar10, "imagenet100": imagenet100, "imagenet1k": imagenet1k}
