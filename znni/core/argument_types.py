"""Types of arguments, checked for callers who have no type checker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from znni.core.errors import InvalidInput

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# What to give for each type, in words.
WORDS: dict[Any, str] = {int: "an integer", float: "a number", bool: "True or False", str: "text"}
# Their own checks say more.
CHECKED_ELSEWHERE = ("ram", "gpu_memory", "threads", "gpus", "dtype", "input_dtype")
MAKERS = {
    "Network": "what znni.load_network returns",
    "Weights": "what znni.load_weights returns",
    "Plan": "what znni.plan returns",
}


def checks_types(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Decorate a function so that arguments of wrong types raise InvalidInput before it begins.

    Types that say what a value can do, not what it is, are not checked: arrays and other protocols.
    Nor are paths, about which the functions that open them say more.
    """

    @wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        _check(function, args, kwargs)
        return function(*args, **kwargs)  # Python's own message about absent arguments is good

    return checked


def _check(
    function: Callable[..., object], unnamed: tuple[object, ...], named: Mapping[str, object]
) -> None:
    types, names = _types(function)
    for name, value in (*zip(names, unnamed, strict=False), *named.items()):
        members = types.get(name, ())
        if not members or type(value) in members:
            continue
        if not any(_is(value, member) for member in members):
            kind = type(value).__name__
            wanted = " or ".join(dict.fromkeys(_words(members)))
            raise InvalidInput(f"{name} is {value!r}, a {kind}; give {wanted}")


@cache
def _types(function: Callable[..., object]) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """Return the types of each argument, and the names of those that may be given without it."""
    own = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    hints = get_type_hints(SimpleNamespace(__annotations__=own), function.__globals__)
    parameters = signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            (options,) = get_args(hints.pop(name)) or ({},)
            hints |= get_type_hints(options) if options else {}
    types = {name: tuple(_members(hint)) for name, hint in hints.items()}
    checked = {
        name: members
        for name, members in types.items()
        if Path not in members and name not in CHECKED_ELSEWHERE
    }
    return checked, tuple(
        name
        for name, parameter in parameters.items()
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    )


def _members(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint allows."""
    if get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from _members(member)
    else:
        yield hint


def _is(value: object, hint: Any) -> bool:
    """Return whether a value is of a type; also if the type does not tell."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # an array of one number
    if get_origin(hint) is Callable:
        return callable(value)
    if hint is bool:
        return value in (0, 1) if isinstance(value, Integral) else type(value).__name__ == "bool"
    if hint in (int, float):
        number = Integral if hint is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    if hint is Any or get_origin(hint) is not None or getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint) if isinstance(hint, type) else True


def _words(members: tuple[Any, ...]) -> Iterator[str]:
    for member in members:
        name = getattr(member, "__name__", str(member))
        if member is NoneType or get_origin(member) is Literal:
            continue
        yield WORDS.get(member) or MAKERS.get(name) or f"a {name}"
