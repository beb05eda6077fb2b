"""Calls of operators in a graph, by PyTorch's names of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter, signature
from typing import Any, NoReturn, Self, TypeAlias

import numpy as np

from znni.importing import checks
from znni.importing.steps import Float64, Operation
from znni.importing.tracing import Traced, Tracer

# The axes (n, f, z, y, x) of an array whose maps become its last axis, and the second one again.
MAPS_LAST, MAPS_SECOND = [0, 2, 3, 4, 1], [0, 4, 1, 2, 3]


@dataclass(frozen=True)
class Value:
    """An array of the graph, by its name among the steps."""

    name: str


@dataclass(frozen=True)
class MapsLast:
    """An array (n, z, y, x, f), whose maps are its last axis.

    Attributes:
        of: what is known of the same array (n, f, z, y, x).
    """

    of: Any


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator.

    Attributes:
        origin: its name and type.
        arguments: its arguments by name: Python values, constant arrays, or ``Value``. The first is
            what it reads.
        results: the names of its results.
        tracer: the graph, which gets its steps.
        is_last: whether the maps are the last axis of all arrays that it takes and gives.
    """

    origin: str
    arguments: Mapping[str, Any]
    results: tuple[str, ...]
    tracer: Tracer
    is_last: bool = field(default=False, kw_only=True)

    @property
    def first(self) -> object:
        """Its first argument."""
        return next(iter(self.arguments.values()), None)

    @property
    def read(self) -> str:
        """The name of its first argument, which is an array of the graph."""
        return self.named(self.first)

    @property
    def held(self) -> Traced:
        """Its first argument, which is an array of the graph."""
        return self.tracer.values[self.read]

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of its first argument along the axes that the source gives it."""
        shape = self.held.shape
        return tuple(shape[axis] for axis in MAPS_LAST) if self.is_last else shape

    @property
    def result(self) -> str:
        """The name of its first result."""
        return self.results[0]

    def named(self, given: object) -> str:
        """Return the name of an array of the graph."""
        if not isinstance(given, Value):
            self.cannot_express(f"has no array of the network there; {checks.LAYERS}")
        return given.name

    def per_map(self, constant: object, maps: int) -> Float64:
        """Return a constant as values (maps,), from a number or an array that broadcasts."""
        if self.is_last and isinstance(constant, np.ndarray) and constant.size > 1:
            constant = constant.reshape((1,) * (5 - constant.ndim) + constant.shape)
            constant = np.moveaxis(constant, -1, 1)
        return checks.per_map(self.origin, constant, maps)

    def maps_first(self) -> Self:
        """Return the call with its arrays as (n, f, z, y, x), if their maps are the last axis."""
        given = list(flat(self.arguments.values()))
        if not any(isinstance(each, MapsLast) for each in given):
            return self
        if any(isinstance(each, Value) for each in given):
            self.cannot_express(
                f"joins arrays of which only some have their maps as the last axis; {checks.LAYERS}"
            )
        return replace(self, arguments=_maps_first(self.arguments), is_last=True)

    def known(self, found: object, result: str) -> object:
        """Return what is known of a result.

        Args:
            found: what its reader returned.
            result: its name.
        """
        if isinstance(found, Value | MapsLast):
            return found
        made = found or Value(result)
        return MapsLast(made) if self.is_last else made

    def add(self, operation: Operation, *reads: str, value: str = "") -> None:
        """Add a step, which reads the first argument and gives the result unless it is told so."""
        self.tracer.add(operation, reads or (self.read,), value or self.result)

    def aside(self, operation: Operation, *reads: str) -> str:
        """Add a step before that of the result, and return the name of its value."""
        value = self.tracer.fresh()
        self.add(operation, *reads, value=value)
        return value

    def same(self, read: str = "") -> None:
        """Give a value another name: that of the result."""
        self.tracer.same(self.origin, read or self.read, self.result)

    def refuse(self, why: str) -> NoReturn:
        """Raise an error about the call."""
        checks.refuse(self.origin, why)

    def cannot_express(self, why: str) -> NoReturn:
        """Raise an error about the call, which only the network's own library computes."""
        checks.cannot_express(self.origin, why)


def flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments, and the members of those that are lists."""
    for argument in arguments:
        yield from argument if isinstance(argument, list | tuple) else [argument]


def _maps_first(given: Any) -> Any:
    """Return arguments with arrays (n, f, z, y, x) in place of those whose maps are last."""
    match given:
        case MapsLast():
            return given.of
        case list() | tuple():
            return type(given)(map(_maps_first, given))
        case Mapping():
            return {name: _maps_first(each) for name, each in given.items()}
    return given


# A reader adds the steps of a call. A maker takes a call's origin and returns its only operation.
# Parameters after the first are the arguments that it takes, by name. ``maps`` are those it reads.
# A reader returns what is known of a result that is no step's value yet, or whose axes moved.
Reader: TypeAlias = Callable[..., object]
Maker: TypeAlias = Callable[..., Operation]


def made_by(make: Maker) -> Reader:
    """Return a reader of calls that are one operation, which a maker makes."""

    def read(call: OperatorCall) -> None:
        call.add(make(call.origin, **_taken(call, make)))

    return read


def read_by(read: Reader, call: OperatorCall) -> object:
    """Read a call, with the arguments that the reader takes, and return what it returns."""
    return read(call, **_taken(call, read))


def _taken(call: OperatorCall, function: Callable[..., object]) -> dict[str, Any]:
    """Return the arguments that a function takes.

    Raises:
        InvalidInput: one without a default is missing.
    """
    taken: dict[str, Any] = {}
    for name, is_needed in _parameters(function).items():
        if name == "maps":
            taken[name] = call.held.maps
        elif name in call.arguments:
            taken[name] = call.arguments[name]
        elif is_needed:
            call.refuse(f"has no {name}; export it again")
    return taken


@cache
def _parameters(function: Callable[..., object]) -> dict[str, bool]:
    """Return the parameters after the first, and whether each is without a default."""
    parameters = list(signature(function).parameters.values())[1:]
    return {each.name: each.default is Parameter.empty for each in parameters}
