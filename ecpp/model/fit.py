"""Weights from elsewhere into an encoder: every key is accounted for."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

_COUNTER = "num_batches_tracked"  # of a BatchNorm: no weight, and missing from old files
_LISTED = 6


@dataclass(frozen=True)
class Fit:
    """Which keys of an encoder got weights; `waived` are those that were allowed to get none, or were left over."""

    matched: int
    total: int
    waived: tuple[str, ...]
    inflated: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{self.matched}/{self.total} keys match"]
        parts += [f"spread over other channels: {', '.join(self.inflated)}"] if self.inflated else []
        parts += [f"left as they were or left over, as allowed: {_some(self.waived)}"] if self.waived else []
        return "; ".join(parts)


def fit(
    encoder: nn.Module, weights: dict[str, Tensor], *, allow: Sequence[str] = (), inflate: bool = False
) -> Fit:
    """Copy `weights` into `encoder`. What does not fit is an error, unless its name is allowed.

    A prefix that all of the encoder's keys have in `weights` is taken off. `allow` holds names of modules or
    patterns of keys. `inflate` spreads a first convolution of three channels over the encoder's, as timm does.
    """
    own = {k: v for k, v in encoder.state_dict().items() if not k.endswith(_COUNTER)}
    prefix = _prefix(list(own), weights)
    theirs = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    chosen: dict[str, Tensor] = {}
    misfits: dict[str, str] = {}
    inflated = []
    for key, mine in own.items():
        value = theirs.get(key)
        if value is not None and value.shape != mine.shape and inflate and _is_first(value, mine):
            value = _spread(value, mine.shape[1])
            inflated.append(key)
        if value is None:
            misfits[key] = f"{key} is missing"
        elif value.shape != mine.shape:
            misfits[key] = f"{key} is {tuple(value.shape)} there, {tuple(mine.shape)} here"
        else:
            chosen[key] = value
    for key in weights:
        plain = key.removeprefix(prefix)
        if not key.endswith(_COUNTER) and not (key.startswith(prefix) and plain in own):
            misfits[plain] = f"{key} is left over"
    result = Fit(len(chosen), len(own), tuple(k for k in misfits if _allowed(k, allow)), tuple(inflated))
    wrong = [said for key, said in misfits.items() if key not in result.waived]
    if not chosen:
        raise ValueError(
            f"none of the encoder's {len(own)} keys match: they are like {_some(list(own)[:2])}, those of the weights "
            f"like {_some(list(weights)[:2])}"
        )
    if wrong:
        raise ValueError(
            f"{result.matched}/{result.total} keys match, but {_some(wrong)}. Name what may be amiss by --init-allow "
            "(modules or patterns of keys)"
        )
    counters = {k: v for k, v in theirs.items() if k.endswith(_COUNTER) and k in encoder.state_dict()}
    encoder.load_state_dict(chosen | counters, strict=False)
    return result


def _prefix(own: list[str], weights: dict[str, Tensor]) -> str:
    """What stands before most of the encoder's keys in the weights."""
    found: dict[str, int] = {}
    for key in own:
        for other in weights:
            if other == key or other.endswith(f".{key}"):
                prefix = other[: -len(key)]
                found[prefix] = found.get(prefix, 0) + 1
    most = max(found.values(), default=0)
    best = [p for p, n in found.items() if n == most]
    if len(best) > 1 and most > len(own) // 2:
        raise ValueError(
            f"the weights hold the encoder {len(best)} times, under {', '.join(map(repr, best))}: save one of them "
            "into a file of its own"
        )
    return best[0] if best else ""


def _is_first(value: Tensor, mine: Tensor) -> bool:
    """Whether two convolutions differ in their channels of input alone, and there are three in one."""
    same = value.ndim == 4 == mine.ndim and value.shape[0] == mine.shape[0]
    return same and value.shape[1] == 3 and value.shape[2:] == mine.shape[2:]


def _spread(value: Tensor, channels: int) -> Tensor:
    from timm.models import adapt_input_conv

    out: Tensor = adapt_input_conv(channels, value.to(torch.float32))
    return out


def _allowed(key: str, allow: Sequence[str]) -> bool:
    return any(fnmatchcase(key, name) or key.startswith(f"{name}.") for name in allow)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
