"""Narrow and shallow ResNets, with the stem for small images: what timm's constructor cannot be asked for.

The parameters carry timm's names, so that a net of the standard width and stem loads as timm's own.
"""

import torch
from timm.models.resnet import BasicBlock, Bottleneck, downsample_conv
from torch import Tensor, nn

LAYERS: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    "resnet10": (BasicBlock, (1, 1, 1, 1)),
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}


class ResNet(nn.Module):
    """A ResNet whose stages are `width`, 2, 4 and 8 times `width` wide; (B, C, H, W) to (B, num_features).

    `small_stem` is the stem for images up to 64 px: a 3×3 convolution of stride 1 and no pooling. With
    `num_classes` a linear classifier follows. The methods beside `forward` are those that timm's models have.
    """

    def __init__(
        self,
        name: str,
        *,
        width: int = 64,
        small_stem: bool = False,
        channels: int = 3,
        num_classes: int = 0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.drop_rate = drop_rate
        block, layers = LAYERS[name]
        if small_stem:
            self.conv1 = nn.Conv2d(channels, width, 3, stride=1, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, stride=2, padding=1)
        before = width
        for stage, depth in enumerate(layers):
            planes, stride = width << stage, 1 if stage == 0 else 2
            blocks: list[nn.Module] = []
            for i in range(depth):
                step = stride if i == 0 else 1
                after = planes * block.expansion
                shortcut = None
                if step != 1 or before != after:
                    shortcut = downsample_conv(before, after, kernel_size=1, stride=step)
                blocks.append(block(before, planes, step, shortcut))
                before = after
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.num_features = before
        self.reset_classifier(num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, num_features, h, w)."""
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """(B, num_features, h, w) to (B, num_features), or with a classifier to (B, num_classes)."""
        x = torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)
        if self.drop_rate:
            x = nn.functional.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int) -> None:
        """A new linear classifier; 0 classes take it away."""
        self.num_classes = num_classes
        device = self.conv1.weight.device
        self.fc: nn.Module = nn.Identity()
        if num_classes:
            self.fc = nn.Linear(self.num_features, num_classes, device=device)
