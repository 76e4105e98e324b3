"""From run folders to a page: reads only JSON files and pictures, and nothing else of ecpp."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecpp.report.figures import Series, curves
    from ecpp.report.page import write_report
    from ecpp.report.sheet import picture_grid
    from ecpp.report.table import cells, columns, summary

__all__ = ["Series", "cells", "columns", "curves", "picture_grid", "summary", "write_report"]

_HOME = {
    "Series": "figures",
    "curves": "figures",
    "write_report": "page",
    "picture_grid": "sheet",
    "cells": "table",
    "columns": "table",
    "summary": "table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
