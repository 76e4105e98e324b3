"""Activations that are computed again instead of kept."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_blocks(encoder: nn.Module) -> int:
    """Let every block of an encoder keep its input alone, and be computed once more when gradients need it.

    Its blocks are the members of its sequences: ResNets' and transformers' alike. Returns how many there are.
    """
    sequences = [m for m in encoder.children() if isinstance(m, nn.Sequential | nn.ModuleList)]
    blocks = [
        block
        for sequence in sequences
        for block in sequence.children()
        if next(block.parameters(), None) is not None
    ]
    if not blocks:
        raise ValueError(
            "--checkpoint-activations needs an encoder that is a sequence of blocks, and this one shows none"
        )
    for block in blocks:
        block.forward = _again(block, block.forward)
    return len(blocks)


def _again(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), unremembered(block)

    def computed(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs)
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts)

    return computed


@contextmanager
def unremembered(module: nn.Module) -> Iterator[None]:
    """BatchNorm normalises by its batch as always, and its running statistics are afterwards what they were."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    kept = [dict(m.named_buffers(recurse=False)) for m in norms]
    for m, buffers in zip(norms, kept, strict=True):
        for name, value in buffers.items():
            setattr(m, name, value.clone())
    try:
        yield
    finally:
        for m, buffers in zip(norms, kept, strict=True):
            for name, value in buffers.items():
                setattr(m, name, value)
