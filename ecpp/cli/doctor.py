"""`ecpp doctor`."""

from dataclasses import dataclass

from ecpp.cli.options import read


@dataclass(frozen=True)
class Doctor:
    """What this machine can do, and a proof that two processes on it take the same steps as one."""

    source: str | None = None
    """Images whose loading is measured too."""


def doctor(argv: list[str]) -> None:
    options = read(Doctor, "doctor", argv)
    from ecpp.run.doctor import examine

    examine(options.source)
