"""The command `ecpp`: one thin file per group of commands, imported when it is called."""

import sys
from importlib import import_module

COMMANDS = {
    "demo": ("demo", "two minutes on two cores: pretrain on generated images, compare, write a page"),
    "pretrain": ("train", "pretrain an encoder: ecpp pretrain SOURCE --out RUN"),
    "replay": ("train", "run again to the step that broke a run, with checks: ecpp replay RUN"),
    "doctor": ("doctor", "what this machine can do, and a proof that several processes train as one"),
    "resume": ("train", "go on with a run that was stopped: ecpp resume RUN"),
    "evaluate": ("judge", "kNN and linear accuracy of a run: ecpp evaluate RUN [SOURCE]"),
    "report": ("judge", "one page about one or several runs: ecpp report RUN..."),
    "export": ("export", "the encoder for timm, torchvision, ONNX or torch.export, proven: ecpp export RUN"),
    "embed": ("export", "the embeddings of all images in one file: ecpp embed RUN SOURCE --out FILE"),
    "neighbours": (
        "export",
        "which images are most like a given one: ecpp neighbours RUN SOURCE --query IMAGE",
    ),
    "scan": ("sources", "what is in a folder of images, and which files are bad: ecpp scan SOURCE"),
    "pack": ("sources", "a source written once into one store that opens at once: ecpp pack SOURCE DST"),
    "plan": ("look", "the views, pairs and cost of a setting, before spending anything"),
    "views": ("look", "a picture of the K views of a few images: ecpp views SOURCE --out FILE.png"),
}


def main(argv: list[str] | None = None) -> None:
    """Run one command; a mistake of the user ends in one sentence and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return
    if argv[0] == "--version":
        import ecpp

        print(ecpp.__version__)
        return
    name, *rest = argv
    if name not in COMMANDS:
        _fail(f"there is no command {name!r}: use one of {', '.join(COMMANDS)}")
    command = getattr(import_module(f"ecpp.cli.{COMMANDS[name][0]}"), name)
    try:
        command(rest)
    except (ValueError, OSError, ImportError) as e:
        if getattr(e, "told", False):  # another process has said it
            sys.exit(2)
        _fail(str(e))
    except (RuntimeError, MemoryError) as e:
        if "memory" not in str(e) and not isinstance(e, MemoryError):
            raise
        _fail("out of memory: take a smaller --batch-size, --large, --width or fewer --views")
    except KeyboardInterrupt:
        print("ecpp: stopped by hand", file=sys.stderr)
        sys.exit(130)


def _usage() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ecpp COMMAND ...",
            "",
            "Pretrain image encoders without labels from K views of every image, pairing all of them.",
            "",
            *lines,
            "",
            "ecpp COMMAND --help explains a command; a SOURCE is a folder of images, a packed store, patterns,",
            "torchvision:NAME, hf:NAME or hf:PATH (parquet).",
        ]
    )


def _fail(sentence: str) -> None:
    print(f"ecpp: {sentence}", file=sys.stderr)
    sys.exit(2)
