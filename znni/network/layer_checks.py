"""Parts of layers: their text, and checks of their numbers for callers without type checkers."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any, ClassVar

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3


class LayerBase:
    """The common parts of layers: their text leaves out the fields that have their default values.

    So a layer keeps its text, and networks their identity, when layers of its class get new fields.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    arity: ClassVar[int | None] = 1  # the number of values that it takes; None: any

    def maps_from(self, *maps: int) -> int:
        """Return the output maps for inputs of that many maps."""
        return maps[0]

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={value!r}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default and field.repr
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def check_count(what: str, count: object) -> None:
    """Check that a number is a positive integer."""
    if not _is_at_least(count, 1):
        raise InvalidInput(f"{what} is {count!r}; give 1 or more")


def check_extents(what: str, extents: object, least: int = 1) -> None:
    """Check that extents are three integers of ``least`` or more: 1, or 0."""
    if not isinstance(extents, Vec3) or not all(_is_at_least(each, least) for each in extents):
        three = (
            "positive integers, as Vec3(3, 3, 3)"
            if least
            else "integers of 0 or more, as Vec3(1, 1, 1)"
        )
        raise InvalidInput(f"{what} is {extents!r}; give a Vec3 of three {three}")


def _is_at_least(number: object, least: int) -> bool:
    return isinstance(number, int) and number >= least
