"""Parts of layers: their text, and checks of their numbers for callers without type checkers."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any, ClassVar

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3


class ShortText:
    """A dataclass whose text leaves out the fields that have their default values.

    So a layer keeps its text, and networks their identity, when layers of its class get new fields.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={value!r}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default and field.repr
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def check_count(what: str, count: object) -> None:
    """Check that a number is a positive integer.

    Raises:
        InvalidInput: it is not.
    """
    if not _is_at_least(count, 1):
        raise InvalidInput(f"{what} is {count!r}; give 1 or more")


def check_extents(what: str, extents: object) -> None:
    """Check that extents are three positive integers.

    Raises:
        InvalidInput: they are not.
    """
    if not isinstance(extents, Vec3) or not all(_is_at_least(extent, 1) for extent in extents):
        raise InvalidInput(
            f"{what} is {extents!r}; give a Vec3 of three positive integers, as Vec3(3, 3, 3)"
        )


def check_not_negative(what: str, extents: object) -> None:
    """Check that extents are three integers of 0 or more.

    Raises:
        InvalidInput: they are not.
    """
    if not isinstance(extents, Vec3) or not all(_is_at_least(extent, 0) for extent in extents):
        raise InvalidInput(
            f"{what} is {extents!r}; give a Vec3 of three integers of 0 or more, as Vec3(1, 1, 1)"
        )


def _is_at_least(number: object, least: int) -> bool:
    return isinstance(number, int) and number >= least
