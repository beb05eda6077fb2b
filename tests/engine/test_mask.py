"""A mask is read in small pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from znni.calibration.overhead_figures import PROCESS_BYTES
from znni.core.shapes import Box, Vec3
from znni.engine.mask import MASK_BYTES, mask_pieces


@given(
    st.tuples(*[st.integers(0, 50)] * 3).map(lambda start: Vec3(*start)),
    st.tuples(*[st.integers(1, 600)] * 3).map(lambda size: Vec3(*size)),
    st.sampled_from([1, 2, 8]),
)
@settings(max_examples=50)
def test_a_mask_is_read_in_pieces_that_a_process_has_room_for(
    start: Vec3, size: Vec3, itemsize: int
) -> None:
    box = Box(start, start + size)
    pieces = list(mask_pieces(box, itemsize))
    assert all(piece.within(box) for piece in pieces)
    assert sum(piece.size.volume for piece in pieces) == size.volume
    assert len({piece.start for piece in pieces}) == len(pieces)
    largest = max(piece.size.volume for piece in pieces) * itemsize
    assert largest <= MASK_BYTES <= 0.01 * PROCESS_BYTES
