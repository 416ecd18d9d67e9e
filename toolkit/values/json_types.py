"""Write dataclasses as JSON, and check values that were made of JSON against the types that their dataclass states."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def to_json(made: Any) -> str:
    """Return the JSON text of a dataclass and of those in it: as `dataclasses.asdict` has them."""
    return json.dumps(made, default=lambda one: {field.name: getattr(one, field.name) for field in fields(one)})


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
