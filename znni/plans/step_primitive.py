"""The primitive of a plan's step, and the notation by which a plan stores it."""

from __future__ import annotations

from znni.plans.composed import Composed, Piece
from znni.plans.composition import AtOnce, Composition, InTurn
from znni.plans.micro_batches import MicroBatches
from znni.plans.primitive import Catalogue, Primitive
from znni.plans.side_by_side import shared_out


def composition_of(primitive: Primitive) -> Composition:
    """Return a plan's notation of a primitive: its name, or the names that it is composed of."""
    if isinstance(primitive, Composed):
        return primitive.composition
    return primitive.name


def find_primitive(catalogue: Catalogue, chosen: Composition) -> Primitive | None:
    """Return the primitive of a plan's step; None if the catalogue lacks one of its components."""
    match chosen:
        case str(name):
            return catalogue.get(name)
        case AtOnce():
            return shared_out(catalogue, chosen)
        case InTurn(pieces):
            known = [
                Piece(piece.times, piece.items, catalogue[piece.primitive])
                for piece in pieces
                if piece.primitive in catalogue and min(piece.times, piece.items) > 0
            ]
            devices = {piece.primitive.device.kind for piece in known}
            alike = len(known) == len(pieces) and len(devices) == 1
            return MicroBatches(tuple(known)) if alike else None


def primitive_of(catalogue: Catalogue, chosen: Composition) -> Primitive:
    """Return the primitive of a plan's step, which the catalogue must contain.

    Raises:
        KeyError: the catalogue does not contain it.
    """
    primitive = find_primitive(catalogue, chosen)
    if primitive is None:
        raise KeyError(str(chosen))
    return primitive
