"""Graphs of operations that must be chains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from znni.core.errors import InvalidInput
from znni.importing.checks import CHAIN

NO_BRANCHES = (
    "skip connections and branches cannot be represented, so U-Nets are not supported yet; " + CHAIN
)

Details = TypeVar("Details")


@dataclass(frozen=True)
class Operation(Generic[Details]):
    """A node of a graph.

    Attributes:
        origin: its name and type.
        reads: names of the values that it reads: the graph's input or computed values, no
            parameters.
        writes: names of the values that it computes.
        details: the node in its source's own form.
    """

    origin: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    details: Details


def in_order(
    operations: Iterable[Operation[Details]], start: str, end: str
) -> list[Operation[Details]]:
    """Return the operations from a graph's input to its output, in order.

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
                raise InvalidInput(f"{both} both give {name!r}; {NO_BRANCHES}")
            writers[name] = operation
    chain: list[Operation[Details]] = []
    at = start
    while at != end or readers[at]:
        match readers[at]:
            case []:
                raise InvalidInput(f"nothing reads {at!r}, which is not its output; {NO_BRANCHES}")
            case [operation] if at != end:
                if len(operation.reads) > 1 or operation in chain:
                    several = ", ".join(map(repr, operation.reads))
                    raise InvalidInput(f"{operation.origin} reads {several}; {NO_BRANCHES}")
                if len(operation.writes) != 1:
                    results = len(operation.writes)
                    raise InvalidInput(
                        f"{operation.origin} gives {results} results; here each layer gives one: "
                        f"export the network without the others"
                    )
                chain.append(operation)
                at = operation.writes[0]
            case several_readers:
                readers_named = ", ".join(operation.origin for operation in several_readers)
                also = " beside being its output" if at == end else ""
                raise InvalidInput(f"{at!r} is read by {readers_named}{also}; {NO_BRANCHES}")
    return chain
