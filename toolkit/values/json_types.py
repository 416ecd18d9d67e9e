"""Check values that were made of JSON against the types that their dataclass states."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def fits(value: object, form: Any) -> bool:
    """Return whether a value has a type, at every depth. An integer must fit into 64 bits, and a bool is none."""
    origin, arguments = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin in (tuple, frozenset):
        return isinstance(value, origin) and all(fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(all(map(fits, item, arguments)) for item in value.items())
    if is_dataclass(form) and isinstance(form, type):
        return isinstance(value, form) and all(fits(getattr(value, name), of) for name, of in _fields(form))
    if form is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    return form is Any or isinstance(value, form)


@cache
def _fields(form: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(form).items())
