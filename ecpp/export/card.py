"""The card of an exported encoder: what it is, where it comes from, and how it is loaded."""

from typing import Any

from ecpp.export.check import Proof
from ecpp.export.formats import Format
from ecpp.export.trained import Trained


def card(t: Trained, to: str, format_: Format, file: str, proof: Proof) -> str:
    """Markdown; the code in it is the code that was run to prove the file."""
    size = t.preprocess.size
    about, inputs = t.about, "NumPy array" if to == "onnx" else "tensor"
    sides = "of any side that the encoder takes" if format_.any_size else f"of {t.sizes[0]} px"
    return "\n".join(
        [
            f"# {file}",
            "",
            f"An image encoder, {t.name}, pretrained without labels by {about['method']}; format: {to}.",
            "",
            "## Load it",
            "```python",
            format_.load(t, file),
            "```",
            f"For `images`, a normalised float32 {inputs} (N, {t.channels}, height, width) {sides}, its features are:",
            "```python",
            format_.use,
            "```",
            "",
            "## Preprocessing",
            _geometry(size),
            f"Then values in [0, 1], minus mean {_numbers(t.preprocess.mean)},",
            f"divided by std {_numbers(t.preprocess.std)}.",
            "",
            "## Training",
            *_training(t),
            "",
            "## Evaluation",
            *_evaluation(about),
            "",
            "## Proof",
            f"When it was written: {proof}.",
            "",
        ]
    )


def _geometry(size: int) -> str:
    if size <= 64:
        return f"The whole image resized to {size}×{size} px, bilinear with antialiasing."
    return (
        f"The shorter side resized to {round(size * 256 / 224)} px, bilinear with antialiasing; "
        f"the {size}×{size} px in the centre cut out."
    )


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def _training(t: Trained) -> list[str]:
    a = t.about
    images = "an unknown number of" if a["images"] is None else f"{a['images']:,}"
    done = "" if a["epochs_done"] is None else f"{a['epochs_done']} of "
    best = ", the best one" if a["epoch"] == "best" else ""
    return [
        f"- data: {a['data']}, {images} images",
        f"- method: {a['method']}, K = {a['K']} views of {', '.join(map(str, t.sizes))} px",
        f"- epochs: {done}{a['epochs']}{best}, {a['steps']:,} steps of {a['batch_size']} images; seed {a['seed']}",
        f"- ecpp {a['ecpp']}",
    ]


def _evaluation(about: dict[str, Any]) -> list[str]:
    """Every number with its protocol, as it was measured of these weights."""
    if not about["evaluation"]:
        which = "" if about["epoch"] is None else f" --epoch {about['epoch']}"
        return [f"Not evaluated: `ecpp evaluate RUN{which}` does it."]
    return [f"- {_result(r)}" for r in about["evaluation"]]


def _result(r: dict[str, Any]) -> str:
    parts = [f"{r.get('protocol', 'an unnamed protocol')}: {_share(r.get('top1'))} top-1"]
    if r.get("top5") is not None:
        parts.append(f"{_share(r['top5'])} top-5")
    if r.get("floor") is not None:
        parts.append(f"{_share(r['floor'])} for {r.get('floor_is', 'the floor')}")
    parts.append(f"on {r['data']}" if r.get("data") else "")
    parts += [f"{r[key]:,} {word}" for key, word in (("labels", "labels"), ("tested", "tested")) if key in r]
    parts.append(str(r.get("details", "")))
    return "; ".join(p for p in parts if p)


def _share(value: Any) -> str:
    return f"{value:.2%}" if isinstance(value, int | float) else "no"
