"""Whether a JSON value is of a Python type, and what such a type is called."""

import types
import typing
from typing import Any, Literal


def words(kind: Any) -> str:
    return str(kind).replace("typing.", "").replace("<class '", "").replace("'>", "")


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value can be a field of this type; an integer serves as a float, a bool never as a number."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple and arguments[-1] is Ellipsis:
        return isinstance(value, list | tuple) and all(fits(v, arguments[0]) for v in value)
    if origin is tuple:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(arguments)
            and all(map(fits, value, arguments))
        )
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
