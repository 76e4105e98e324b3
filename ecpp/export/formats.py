"""The formats that an encoder is exported to: what each can hold, how it is written, and the call that loads it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ecpp.export import writers
from ecpp.export.trained import Trained

TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_RUN_TORCH = "with torch.inference_mode():\n    features = encoder(images)"
_RUN_ONNX = 'features = session.run(None, {"images": images})[0]'


@dataclass(frozen=True)
class Format:
    """`load` is code that a stranger runs beside the file, `use` the code that makes features of `images`."""

    suffix: str
    refusal: Callable[[Trained], str | None]  # why it cannot hold an encoder
    write: Callable[[Trained, Path], None]
    metadata: Callable[[Path], str | None]
    load: Callable[[Trained, str], str]
    use: str = _RUN_TORCH
    any_size: bool = True  # else images of the largest views' size alone

    @property
    def graph(self) -> bool:
        """Whether it holds the computation beside the weights."""
        return not self.any_size


def _never(_: Trained) -> None:
    return None


def _timm_refusal(t: Trained) -> str | None:
    if not t.entry.name.startswith("ecpp_"):
        return None
    return "timm alone knows ResNets of the standard width and stem, from resnet18 on"


def _torchvision_refusal(t: Trained) -> str | None:
    if t.entry.name not in TORCHVISION or t.channels != 3:
        return (
            f"from torchvision come {', '.join(TORCHVISION)} of three channels, the standard width and stem"
        )
    return None


def _timm_call(t: Trained, file: str) -> str:
    known = t.entry.name.startswith("ecpp_")
    first = [f"import ecpp.model  # registers {t.entry.name} with timm"] if known else []
    arguments = "".join(f"    {k}={v!r},\n" for k, v in t.entry.arguments.items())
    config = ", ".join(f"{k}={v!r}" for k, v in t.data_config().items())
    call = (
        f"encoder = timm.create_model(\n    {t.entry.name!r},\n    checkpoint_path={file!r},\n{arguments}"
        f"    pretrained_cfg_overlay=dict({config}),\n).eval()"
    )
    return "\n".join([*first, "import timm", "import torch", "", call])


def _torchvision_call(t: Trained, file: str) -> str:
    return (
        "import torch\nimport torchvision\nfrom safetensors.torch import load_file\n\n"
        f"encoder = torchvision.models.{t.entry.name}()\n"
        "encoder.fc = torch.nn.Identity()\n"
        f"encoder.load_state_dict(load_file({file!r}), strict=True)\n"
        "encoder.eval()"
    )


def _export_call(_: Trained, file: str) -> str:
    return f"import torch\n\nencoder = torch.export.load({file!r}).module()"


def _onnx_call(_: Trained, file: str) -> str:
    return (
        "import onnxruntime\n\n"
        f'session = onnxruntime.InferenceSession({file!r}, providers=["CPUExecutionProvider"])'
    )


_SAFETENSORS, _PT2, _ONNX = ".safetensors", ".pt2", ".onnx"
FORMATS: dict[str, Format] = {
    "timm": Format(_SAFETENSORS, _timm_refusal, writers.weights, writers.weights_metadata, _timm_call),
    "torchvision": Format(
        _SAFETENSORS, _torchvision_refusal, writers.weights, writers.weights_metadata, _torchvision_call
    ),
    "safetensors": Format(_SAFETENSORS, _never, writers.weights, writers.weights_metadata, _timm_call),
    "torch-export": Format(_PT2, _never, writers.graph, writers.graph_metadata, _export_call, any_size=False),
    "onnx": Format(
        _ONNX, _never, writers.onnx, writers.onnx_metadata, _onnx_call, use=_RUN_ONNX, any_size=False
    ),
}


def choose(name: str, t: Trained) -> Format:
    """The format of that name, or a sentence on those that can hold this encoder."""
    if name not in FORMATS:
        raise ValueError(f"there is no format {name!r}: use one of {', '.join(FORMATS)}")
    reason = FORMATS[name].refusal(t)
    if reason is not None:
        able = [other for other, format_ in FORMATS.items() if format_.refusal(t) is None]
        raise ValueError(f"{name} cannot hold {t.name}: {reason}. Formats that can: {', '.join(able)}")
    return FORMATS[name]
