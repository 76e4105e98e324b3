"""From run folders to a page: reads only JSON files and pictures, and nothing else of ecpp."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecpp.report.figures import Series, curves
    from ecpp.report.page import write_report
    from ecpp.report.protocols import HEADS, protocol_rows
    from ecpp.report.read import read_runs
    from ecpp.report.sheet import picture_grid
    from ecpp.report.table import cells, columns, summary

__all__ = [
    "HEADS",
    "Series",
    "cells",
    "columns",
    "curves",
    "picture_grid",
    "protocol_rows",
    "read_runs",
    "summary",
    "write_report",
]

_HOME = {
    "HEADS": "protocols",
    "Series": "figures",
    "curves": "figures",
    "write_report": "page",
    "picture_grid": "sheet",
    "protocol_rows": "protocols",
    "read_runs": "read",
    "cells": "table",
    "columns": "table",
    "summary": "table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
