"""`--init`: where an encoder starts from, if not from random weights."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ecpp.config import Config
from ecpp.model import timm_entry
from ecpp.model.fit import fit
from ecpp.model.resnet import LAYERS
from ecpp.run.folder import RunFolder
from ecpp.train import load_checkpoint

_ENCODER = "encoder."  # before the encoder's keys in a checkpoint of ours
_NESTED = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model",
)  # where others keep their weights, best first


def initialise(encoder: nn.Module, config: Config) -> str:
    """Copy the weights that `config.init` names into the encoder; a sentence on how many keys matched."""
    name = config.init or ""
    kind, _, rest = name.partition(":")
    weights = _from_timm(rest, config) if kind == "timm" else read_weights(Path(name))
    try:
        return f"--init {name}: {fit(encoder, weights, allow=config.init_allow, inflate=config.init_inflate)}"
    except ValueError as e:
        raise ValueError(f"--init {name} does not fit {config.encoder}: {e}") from e


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a run folder, a checkpoint, a .safetensors file or a state dict; nothing in it is run."""
    if path.is_dir():
        RunFolder(path).read()
        path = RunFolder(path).checkpoint
    if not path.exists():
        raise FileNotFoundError(
            f"there is nothing to start from at {path}: --init takes a run folder, a checkpoint, a .safetensors file, "
            "a state dict, or timm:NAME"
        )
    if path.suffix == ".safetensors":
        return _safetensors(path)
    state: dict[str, Any] = load_checkpoint(path)
    if "method" in state:
        state = {k[len(_ENCODER) :]: v for k, v in state["method"].items() if k.startswith(_ENCODER)}
    else:
        nested = [state[k] for k in _NESTED if isinstance(state.get(k), dict)]
        state = nested[0] if nested else state
    weights = {k: v for k, v in state.items() if isinstance(v, Tensor)}
    if not weights:
        raise ValueError(f"{path} holds no weights: a dict of tensors was expected")
    return weights


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as e:
        raise ValueError(f"{path} is damaged or no safetensors file: {e}") from e


def _from_timm(name: str, config: Config) -> dict[str, Tensor]:
    """timm's own weights of that name, as it would give them to a model for the run's images."""
    import timm

    arguments: dict[str, Any] = {"num_classes": 0}
    if config.encoder not in LAYERS:
        entry = timm_entry(config.encoder, size=config.large or 0, channels=config.channels)
        arguments = entry.arguments | {"in_chans": 3}  # --init-inflate spreads them over others
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, **arguments)
    except (OSError, RuntimeError, ValueError, TypeError) as e:
        reason = str(e).strip().split("\n")[0][:200]
        raise ValueError(
            f"timm gives no weights for {name!r} ({reason}): without a network, download them elsewhere and name the "
            "file by --init"
        ) from e
    return dict(model.state_dict())
