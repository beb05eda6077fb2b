"""A plan's step names its primitive, or the components of it."""

from __future__ import annotations

import pytest
from fakes import fake_catalogue

from znni.plans.composed import Piece
from znni.plans.composition import Composition, InTurn, PieceBy
from znni.plans.micro_batches import MicroBatches
from znni.plans.step_primitive import composition_of, find_primitive, primitive_of


def test_what_a_plan_notes_is_found() -> None:
    catalogue = fake_catalogue()
    divided = MicroBatches((Piece(4, 2, catalogue["conv"]), Piece(1, 3, catalogue["conv"])))
    assert divided.name == "4x2 conv + 1x3 conv"
    assert find_primitive(catalogue, composition_of(divided)) == divided
    assert primitive_of(catalogue, "conv") is catalogue["conv"]


@pytest.mark.parametrize(
    "chosen",
    [
        "",
        "no",
        "4x2 conv",
        InTurn(()),
        InTurn((PieceBy(4, 2, "no"),)),
        InTurn((PieceBy(0, 2, "conv"),)),
        InTurn((PieceBy(4, 2, "conv"), PieceBy(1, 0, "conv"))),
    ],
)
def test_others_are_not_found(chosen: Composition) -> None:
    assert find_primitive(fake_catalogue(), chosen) is None
    with pytest.raises(KeyError):
        primitive_of(fake_catalogue(), chosen)
