"""`ecpp export`: write, prove, and only then put in place; beside the file its card."""

import os
import shutil
import tempfile
from pathlib import Path

from ecpp.export.card import card
from ecpp.export.check import Proof, verify
from ecpp.export.formats import choose
from ecpp.export.trained import trained
from ecpp.run import Epoch


def export_run(run: Path, to: str, out: Path, *, epoch: Epoch = None) -> Proof:
    """The encoder of `run` in the format `to`. `out` appears, with its card, when it has been proven."""
    t = trained(run, epoch)
    format_ = choose(to, t)
    if out.suffix != format_.suffix:
        raise ValueError(f"a file for {to} ends in {format_.suffix}, but --out is {out.name!r}")
    out.parent.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(prefix=".export-", dir=out.parent))
    try:
        file, text = room / out.name, room / "card.md"
        format_.write(t, file)
        proof = verify(file, format_, t)
        text.write_text(card(t, to, format_, out.name, proof), encoding="utf-8")
        os.replace(file, out)
        os.replace(text, out.with_name(f"{out.name}.md"))
    finally:
        shutil.rmtree(room)
    return proof


def check_export(run: Path, to: str, file: Path, *, epoch: Epoch = None) -> Proof:
    """The same proof for a file that was written earlier; it is left as it is."""
    t = trained(run, epoch)
    return verify(file, choose(to, t), t)
