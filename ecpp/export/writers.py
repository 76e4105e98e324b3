"""One encoder into one file, with its metadata."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ecpp.export.trained import Trained

KEY = "ecpp"  # of the metadata
_GRAPH_METADATA = "ecpp.json"
_EXAMPLES = 2  # a batch of one would fix the batch size
_PROTOBUF = 2 << 30  # bytes that an ONNX file holds at most


def weights(t: Trained, path: Path) -> None:
    from safetensors.torch import save

    # A copy of each: the file refuses tensors that share memory or lie with their channels last.
    state = {k: v.contiguous().clone() for k, v in t.encoder.state_dict().items()}
    path.write_bytes(save(state, metadata={"format": "pt", KEY: t.metadata()}))


def weights_metadata(path: Path) -> str | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get(KEY)
    except SafetensorError as e:
        raise ValueError(str(e)) from e


def graph(t: Trained, path: Path) -> None:
    torch.export.save(_traced(t), path, extra_files={_GRAPH_METADATA: t.metadata()})


def graph_metadata(path: Path) -> str | None:
    extra: dict[str, Any] = {_GRAPH_METADATA: ""}
    try:
        torch.export.load(path, extra_files=extra)
    except (RuntimeError, ValueError, LookupError, OSError) as e:
        raise ValueError(str(e)) from e
    found = extra[_GRAPH_METADATA]
    return found.decode() if isinstance(found, bytes) else found or None


def _traced(t: Trained) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    images = t.inputs(_EXAMPLES, t.sizes[0])
    try:
        return torch.export.export(t.encoder, (images,), dynamic_shapes=({0: batch},))
    except (RuntimeError, ValueError, torch._dynamo.exc.TorchDynamoException) as e:
        reason = str(e).strip().split("\n")[0][:200]
        raise ValueError(
            f"torch.export cannot follow {t.name} ({reason}): take --to safetensors, which holds weights alone"
        ) from e


def onnx(t: Trained, path: Path) -> None:
    _need_onnx()
    size = sum(v.numel() * v.element_size() for v in t.encoder.state_dict().values())
    if size >= _PROTOBUF:
        raise ValueError(
            f"{t.name} has {size / 1e9:.1f} GB of weights, but an ONNX file holds 2: take --to torch-export"
        )
    # Nothing is folded, so that every weight keeps its name and can be compared; the runtime folds as it loads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own inner workings
        program = torch.onnx.export(
            _traced(t), dynamo=True, optimize=False, verbose=False, input_names=["images"], output_names=["features"]
        )  # fmt: skip
    if program is None:
        raise ValueError(f"torch.onnx gave no program for {t.name}: take --to torch-export")
    program.model.metadata_props[KEY] = t.metadata()
    program.save(path, external_data=False)


def onnx_metadata(path: Path) -> str | None:
    found = {p.key: p.value for p in _opened(path).metadata_props}
    return found.get(KEY)


def onnx_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of the graph by their names."""
    from onnx import numpy_helper

    return {
        i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in _opened(path).graph.initializer
    }


def _opened(path: Path) -> Any:
    import onnx as library
    from google.protobuf.message import DecodeError

    try:
        return library.load(str(path))
    except DecodeError as e:
        raise ValueError(str(e)) from e


def _need_onnx() -> None:
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ImportError(f"--to onnx needs {', '.join(missing)}: pip install 'ecpp[onnx]'")
