"""Checks of the numbers of a layer, even if the caller uses no type checker."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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


def changed_repr(layer: DataclassInstance) -> str:
    """Return a layer as text, without the fields that have their defaults.

    The identity of an output contains it. So new fields of a layer leave the identity of networks
    without them as it was.
    """
    said = [
        f"{field.name}={value!r}"
        for field in fields(layer)
        if (value := getattr(layer, field.name)) != field.default
    ]
    return f"{type(layer).__name__}({', '.join(said)})"
