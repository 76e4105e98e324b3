"""BatchNorm over all ranks: on GPUs PyTorch's, which trains on them alone, and a small one of our own on CPUs."""

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.layers.norm_act import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ecpp import distributed


def synchronise(module: nn.Module) -> None:
    """Let the BatchNorms inside `module` take their statistics from all ranks, where there are several."""
    if distributed.world() == 1:
        return
    for name, child in module.named_children():
        if any(p.device.type == "cuda" for p in child.parameters()):
            converted = cast(nn.Module, convert_sync_batchnorm(child))  # type: ignore[no-untyped-call]
        else:
            converted = _convert(child)
        module.add_module(name, converted)


def _convert(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return SyncBatchNorm.like(module)
    for name, child in module.named_children():
        module.add_module(name, _convert(child))
    return module


class SyncBatchNorm(_BatchNorm):
    """A BatchNorm whose means and variances are those of the batches of all ranks together."""

    @classmethod
    def like(cls, norm: _BatchNorm) -> "SyncBatchNorm":
        """One with the parameters and statistics of `norm`, and the activation that timm's may carry."""
        own = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            norm.affine,
            norm.track_running_stats,
        )
        own.weight, own.bias = norm.weight, norm.bias
        own.running_mean, own.running_var = norm.running_mean, norm.running_var
        own.num_batches_tracked = norm.num_batches_tracked
        if isinstance(norm, BatchNormAct2d):
            own.add_module("drop", norm.drop)
            own.add_module("act", norm.act)
        return own.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        y = self._normalise(x)
        for name in ("drop", "act"):
            if name in self._modules:
                y = self.get_submodule(name)(y)
        return y

    def _normalise(self, x: Tensor) -> Tensor:
        tracked = self.running_mean is not None and self.running_var is not None
        if not self.training and tracked:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        y, mean, var, count = _Normalise.apply(x, self.weight, self.bias, self.eps)
        if self.training and self.track_running_stats and tracked:
            self._follow(mean, var * count / (count - 1))
        return cast(Tensor, y)

    @torch.no_grad()
    def _follow(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.num_batches_tracked is None or self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _Normalise(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps) · weight + bias over all ranks; also the mean, the variance, the count."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = _wide(x)
        c, dims = x.shape[1], _but_channels(x)
        var, mean = torch.var_mean(wide, dims, correction=0)  # (C,) of this rank
        mine = torch.cat([mean, var, mean.new_tensor([x.numel() / c])])
        parts = [torch.empty_like(mine) for _ in range(distributed.world())]
        dist.all_gather(parts, mine)
        every = torch.stack(parts)  # (W, 2C + 1)
        means, variances, counts = every[:, :c], every[:, c:-1], every[:, -1:]
        count = counts.sum()
        mean = (counts * means).sum(dim=0) / count
        var = (counts * (variances + (means - mean).square())).sum(dim=0) / count
        y = F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt(), count)
        ctx.mark_non_differentiable(mean, var, count)
        return y, mean, var, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the synchronised BatchNorm has no second derivative")
        x, weight, mean, scale, count = ctx.saved_tensors
        shape, dims = [1, -1] + [1] * (x.ndim - 2), _but_channels(x)
        dy = _wide(gradients[0])
        normal = (_wide(x) - mean.view(shape)) * scale.view(shape)
        # The parameters' gradients stay this rank's: DDP joins them with all others.
        local = torch.stack([dy.sum(dims), (dy * normal).sum(dims)])  # (2, C)
        total = local.clone()
        dist.all_reduce(total)
        of_dy, of_product = (t.view(shape) for t in total / count)
        factor = scale if weight is None else weight * scale
        dx = (dy - of_dy - normal * of_product) * factor.view(shape)
        if weight is None:
            return dx.to(x.dtype), None, None, None
        return dx.to(x.dtype), local[1].to(weight.dtype), local[0].to(weight.dtype), None


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]
