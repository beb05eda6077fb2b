"""Notation for how a step is computed: by one primitive, by several in turn, or by two at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class PieceBy:
    """Some items of a batch that one primitive computes, several times one after another.

    Attributes:
        times: the number of times.
        items: the items of the input, each time.
        primitive: the primitive's name in the catalogue.
    """

    times: int
    items: int
    primitive: str

    def __str__(self) -> str:
        return f"{self.times}x{self.items} {self.primitive}"


@dataclass(frozen=True)
class InTurn:
    """A batch in pieces, one after another.

    Attributes:
        pieces: the pieces in order. No two have the same items and primitive.
    """

    pieces: tuple[PieceBy, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.pieces))


@dataclass(frozen=True)
class ShareBy:
    """Some items of a batch that one primitive computes.

    Attributes:
        items: the items of the input.
        primitive: the primitive's name in the catalogue.
    """

    items: int
    primitive: str

    def __str__(self) -> str:
        return f"{self.items} {self.primitive}"


@dataclass(frozen=True)
class AtOnce:
    """A batch shared between the host's processors and a GPU.

    Attributes:
        on_host: the first items, by a primitive of the processors.
        on_gpu: the other items, by a primitive of the host that computes on a GPU.
    """

    on_host: ShareBy
    on_gpu: ShareBy

    def __str__(self) -> str:
        return f"{self.on_host} beside {self.on_gpu}"


# The name of a primitive, or a composition of several.
Composition: TypeAlias = str | InTurn | AtOnce
