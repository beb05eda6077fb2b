"""Graphs of operations, as sources have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from znni.core.errors import InvalidInput

ONE_PATH = "only chains of layers are read from such files"

Details = TypeVar("Details")


@dataclass(frozen=True)
class Operation(Generic[Details]):
    """A node of a graph.

    Attributes:
        origin: its name and type.
        reads: names of the values that it reads: the graph's input or computed values, no
            parameters.
        writes: names of the values that it computes or changes.
        details: the node in its source's own form.
    """

    origin: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    details: Details


def needed(
    operations: Sequence[Operation[Details]], outputs: Iterable[str]
) -> list[Operation[Details]]:
    """Return the operations on which a graph's outputs depend, in their order."""
    wanted, kept = set(outputs), list[Operation[Details]]()
    for operation in reversed(operations):
        if wanted.intersection(operation.writes):
            kept.append(operation)
            wanted.update(operation.reads)
    return kept[::-1]


def in_order(
    operations: Iterable[Operation[Details]], start: str, end: str
) -> list[Operation[Details]]:
    """Return the operations of a chain from its input to its output, in order.

    Each operation must be the only one that reads the previous one's result.

    Raises:
        InvalidInput: they are no chain; the message names where it branches.
    """
    readers = defaultdict[str, list[Operation[Details]]](list)
    writers = dict[str, Operation[Details]]()
    for operation in operations:
        for name in dict.fromkeys(operation.reads):
            readers[name].append(operation)
        for name in operation.writes:
            if name in writers:
                both = f"{writers[name].origin} and {operation.origin}"
                raise InvalidInput(f"{both} both give {name!r}; {ONE_PATH}")
            writers[name] = operation
    chain: list[Operation[Details]] = []
    at = start
    while at != end or readers[at]:
        match readers[at]:
            case []:
                raise InvalidInput(f"nothing reads {at!r}, which is not its output; {ONE_PATH}")
            case [operation] if at != end:
                if operation in chain:
                    raise InvalidInput(f"{operation.origin} is in a cycle; {ONE_PATH}")
                chain.append(operation)
                (at,) = operation.writes
            case several_readers:
                readers_named = ", ".join(operation.origin for operation in several_readers)
                also = " beside being its output" if at == end else ""
                raise InvalidInput(f"{at!r} is read by {readers_named}{also}; {ONE_PATH}")
    return chain
