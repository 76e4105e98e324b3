"""The small networks behind the encoder: projector and predictor."""

from torch import nn


def mlp(inputs: int, hidden: int, outputs: int, *, layers: int, final_bn: bool) -> nn.Sequential:
    """(Linear-BN-ReLU) × (layers - 1), then Linear, with a BatchNorm of its own if `final_bn`.

    A bias before a BatchNorm would be subtracted again, so it is left out there.
    """
    if layers < 1:
        raise ValueError(f"a head needs at least one layer, but layers={layers}")
    parts: list[nn.Module] = []
    for _ in range(layers - 1):
        parts += [nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
        inputs = hidden
    parts.append(nn.Linear(inputs, outputs, bias=not final_bn))
    if final_bn:
        parts.append(nn.BatchNorm1d(outputs))
    return nn.Sequential(*parts)
