"""What a run is: one frozen dataclass, whose fields are the options of the command line and the keys of run.json."""

import dataclasses
import typing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from ecpp.fits import fits, words
from ecpp.method import METHODS, methods_by_option

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]  # so that the command line and run.json know the choices

_ANY = float("inf")
# What an option may be, from least to most; what is far beyond use is refused before it fills the memory.
_RANGES = {
    "views": (2, 256),
    "limit": (2, _ANY),
    "large": (4, 4096),
    "small": (4, _ANY),
    "width": (1, 4096),
    "projector_layers": (1, _ANY),
    "projector_dim": (1, 65_536),
    "epochs": (1, _ANY),
    "batch_size": (2, _ANY),
    "lr": (-_ANY, 1e6),
    "threads": (1, _ANY),
    "workers": (0, 256),
    "channels": (1, 4096),
    "max_unreadable": (0, 1),
    "seed": (0, _ANY),
    "log_every": (1, _ANY),
    "accumulate": (1, _ANY),
    "micro_batch": (2, _ANY),
}


@dataclass(frozen=True)
class Config:
    """How an encoder is pretrained."""

    source: str
    """Images: a folder, a packed store, patterns[:NUMBER[xSIZE]], torchvision:NAME, or hf:NAME."""
    val: str | None = None
    """Held-out labelled images for kNN; None takes the source's own test/ or val/ split."""
    limit: int | None = None
    """Use a random subset of this many images, of every class alike; None takes all."""
    classes: str | None = None
    """A file that lists the classes to take, one a line; None takes all."""
    channels: int = 3
    """3 for colour, 1 for grey, otherwise the files' own number: colour operations need 3 and are off elsewhere."""

    method: MethodName = "simclr"
    """What the pairs of views are taught."""
    views: int = 4
    """K, the number of views of every image."""
    n_simclr: int | None = None
    """How many of the K views are SimCLR views, the others being crop-only; None takes max(2, ceil(K/2))."""
    large: int | None = None
    """Side of the two large views; None takes the images' own side up to 64 px, else 224."""
    small: int | None = None
    """Side of the other K-2 views; None takes the large side below 192 px, else 96."""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """Share of the image's area that a crop covers."""
    look: Literal["cifar", "imagenet"] | None = None
    """Colour operations and normalisation of that data set in the paper; None takes cifar up to 64 px."""
    mean: tuple[float, ...] | None = None
    """Mean of every channel in [0, 1]; None takes the look's for colour, else that of a thousand images."""
    std: tuple[float, ...] | None = None
    """Standard deviation of every channel; None likewise."""
    pairing: Literal["full", "multi-crop", "core"] = "full"
    """Which pairs of views teach (Table 1)."""
    loss: Literal["ecpp", "vanilla"] = "ecpp"
    """SimCLR: the contrastive loss without (Eq. 4) or with (Eq. 1) the positive in the denominator."""
    tau: float = 0.2
    """SimCLR, MoCo v3: temperature of the contrastive loss."""
    pair_reduction: Literal["sum", "mean"] = "sum"
    """Sum the pairs as the paper does, or average them: a sum's gradient grows with K(K-1)/2."""
    ema: float = 0.99
    """BYOL, MoCo v3: how slowly the target follows at the start."""
    ema_schedule: Literal["cosine", "constant"] = "cosine"
    """BYOL, MoCo v3: let ema rise to 1 at the end, where the target stands still, or leave it."""
    ema_per_pair: bool = False
    """BYOL, MoCo v3: move the target at every step as if each pair had been a step: by ema to the power of pairs."""
    target_views: Literal["all", "large_only"] = "all"
    """BYOL, MoCo v3, SimSiam: every view is predicted, or large views alone, by the small ones too."""
    stop_gradient: bool = True
    """SimSiam: without it the embeddings collapse, which is all that turning it off can show."""

    encoder: str = "resnet18"
    """resnet10, resnet18, resnet34, resnet50, resnet101, or any encoder of timm."""
    width: int | None = None
    """Channels of a ResNet's first stage; None is the standard, 64."""
    init: str | None = None
    """Start from weights: a run, a checkpoint, a .safetensors file, a state dict, or timm:NAME; None draws them."""
    init_allow: tuple[str, ...] = ()
    """Modules or patterns of keys, such as fc or layer4.*, that --init may lack, hold beside, or have otherwise."""
    init_inflate: bool = False
    """Spread a first convolution of three channels over the images' channels."""
    projector_layers: int | None = None
    """Layers of the projector; None takes 3 for Barlow Twins and VICReg, else 2 up to 64 px and 3 above."""
    projector_dim: int | None = None
    """Size of the embeddings that the loss compares; None takes 512 for those two, 16 for W-MSE, else 256."""
    bn_mode: Literal["per_group", "per_view", "per_kind"] = "per_group"
    """One encoder pass, so one set of BatchNorm statistics, per resolution, per view, or per resolution and kind."""

    epochs: int = 100
    """Passes over the images."""
    batch_size: int = 64
    """Images per step (each gives K views)."""
    optimizer: Literal["sgd", "adamw", "lars"] = "sgd"
    """The paper's is sgd; adamw and lars rescale steps, which cancels the K(K-1)/2 of summed pairs."""
    lr: float | None = None
    """Highest learning rate; None takes batch/256 times 0.3 for lars, 0.001 for adamw, the method's own for sgd."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Warm-up then cosine to 0, or one learning rate throughout."""
    warmup: float | None = None
    """Epochs of warm-up; None takes a tenth of all, at most 10."""
    momentum: float = 0.9
    """Momentum of sgd and lars."""
    weight_decay: float = 1e-4
    """Weight decay of all but biases and normalisation."""
    clip: float | None = None
    """Clip the gradient's norm to this; None does not clip."""

    accumulate: int = 1
    """Cut every batch into this many parts to save memory; negatives then come from within a part alone."""
    micro_batch: int | None = None
    """Keep the activations of this many images at a time, with the negatives of the whole batch; None keeps all."""
    checkpoint_activations: bool = False
    """Keep fewer activations and compute them again: less memory, a third more work."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto takes bf16 where the device has it in hardware, and fp16 on GPUs that lack it."""
    device: str | None = None
    """cpu, cuda or mps; None takes the best there is."""
    threads: int | None = None
    """CPU threads of the encoder; None takes as many as PyTorch does."""
    workers: int | None = None
    """Processes that decode images too large to be held in memory; None takes cores - 1, at most 8."""
    kernel: Literal["torch", "compiled"] = "torch"
    """compiled: on a CPU the colours of views by a small C program, which needs a C compiler once."""
    scaled: bool = False
    """Decode JPEGs at a half, a quarter or an eighth of their size where no view needs more: faster, less exact."""
    max_unreadable: float = 0.05
    """Share of the images that may turn out unreadable before the run stops with their list."""
    seed: int = 0
    """Fixes weights, subset, order and views."""
    log_every: int = 10
    """Steps between two lines in metrics.jsonl."""
    keep_epochs: bool = False
    """Keep the encoder of every epoch in RUN/epochs, for `ecpp evaluate RUN --curve`."""
    log: str | None = None
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both with a comma."""
    keep_best: Literal["rankme", "knn"] | None = None
    """Keep the weights of the best epoch too, in best.pt: by effective rank, or by kNN where there are labels."""

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{_flag(name)} must be at least {least}, but is {value}")
            if value is not None and value > most:
                raise ValueError(f"{_flag(name)} must be at most {most:g}, but is {value}")
        for name in ("lr", "tau", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{_flag(name)} must be a number above 0, but is {value}")
        for name in ("weight_decay", "warmup"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{_flag(name)} must be 0 or more, but is {value}")
        for name in ("ema", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{_flag(name)} must be at least 0 and below 1, but is {getattr(self, name)}"
                )
        if self.warmup is not None and self.warmup >= self.epochs and self.warmup > 0:
            raise ValueError(
                f"--warmup {self.warmup:g} leaves nothing of {self.epochs} epochs to train in: give a smaller --warmup"
            )
        if self.method not in METHODS:
            raise ValueError(f"--method must be one of {', '.join(METHODS)}, but is {self.method!r}")
        used = [
            (o, f"--method {' or '.join(of)}", self.method in of) for o, of in methods_by_option().items()
        ]
        for name, owner, is_used in (
            *used,
            ("momentum", "--optimizer sgd or lars", self.optimizer != "adamw"),
            ("init_allow", "--init", self.init is not None),
            ("init_inflate", "--init", self.init is not None),
        ):
            if is_used and not hasattr(self, name):
                raise ValueError(
                    f"{self.method!r} in METHODS reads the option {name!r}, which is no field of Config: add it in "
                    "ecpp/config.py with its default and a sentence, and it becomes an option of the command line"
                )
            if not is_used and getattr(self, name, None) != getattr(type(self), name, None):
                raise ValueError(f"{_flag(name)} belongs to {owner} and would do nothing here: leave it out")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and len(values) != self.channels:
                raise ValueError(
                    f"--{name} gives {len(values)} numbers, but the images have {self.channels} channels"
                )
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"--std must hold numbers above 0, but is {self.std}")
        if self.batch_size % self.accumulate or self.batch_size < 2 * self.accumulate:
            raise ValueError(
                f"--accumulate {self.accumulate} cannot cut a batch of {self.batch_size} into equal parts of at least 2"
            )
        if self.micro_batch is not None and self.accumulate > 1:
            raise ValueError("--micro-batch and --accumulate both cut the batch: give one of them")
        for where in (self.log or "").split(",") if self.log is not None else []:
            if where not in ("tensorboard", "wandb"):
                raise ValueError(
                    f"--log must be tensorboard, wandb or tensorboard,wandb, but is {self.log!r}"
                )
        if self.seed >= 2**63:
            raise ValueError(f"--seed must be below 2^63, but is {self.seed}")

    def to_json(self) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Config":
        """The config that `to_json` wrote; unknown, missing or mistyped keys are errors."""
        kinds = typing.get_type_hints(cls)
        for key, value in values.items():
            if key not in kinds:
                near = get_close_matches(key, kinds, n=1)
                raise ValueError(
                    f"unknown key {key!r} in a config" + (f": is {near[0]!r} meant?" if near else "")
                )
            if not fits(value, kinds[key]):
                raise ValueError(
                    f"the key {key!r} of a config should be {words(kinds[key])}, but is {value!r}"
                )
        missing = [k for k in kinds if k not in values]
        if missing:
            raise ValueError(
                f"a config lacks the keys {', '.join(missing)}: another version of ecpp wrote it"
            )
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)

    def difference(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """The fields in which two configs differ, as (this one's, the other's)."""
        mine, theirs = self.to_json(), other.to_json()
        return {k: (mine[k], theirs[k]) for k in mine if mine[k] != theirs[k]}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
