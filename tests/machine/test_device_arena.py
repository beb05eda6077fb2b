"""A GPU's arena gives each array its own memory in one piece, within its capacity."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from znni.machine import device_arena
from znni.machine.arena import output_into
from znni.machine.device_arena import (
    ALIGNMENT,
    MOST_ARRAYS,
    DeviceArena,
    TwoStacks,
    device_workspace,
    new_device_output,
)

KIB = 1024


@pytest.fixture
def addresses_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace GPU memory by addresses without memory, which no test reads.

    Later tests do not find these arenas among those alive.
    """
    pytest.importorskip("cupy", reason="needs CuPy, which is for Linux on x86-64")
    nowhere = SimpleNamespace(ptr=1 << 40, device_id=0)
    monkeypatch.setattr(device_arena, "allocate", lambda _: nowhere)
    monkeypatch.setattr(device_arena, "_arenas", WeakSet())
    return iter(())


@given(st.lists(st.tuples(st.integers(0, 9000), st.booleans(), st.integers(0, 5)), max_size=40))
def test_live_blocks_never_overlap(requests: list[tuple[int, bool, int]]) -> None:
    ends = TwoStacks(0, 1000 * KIB)
    live = []
    for size, high, dropped in requests:
        ends.at_high_end = high
        live.append(ends.take(size))
        assert live[-1].stop - live[-1].start >= size
        assert live[-1].start % ALIGNMENT == 0
        if dropped < len(live):
            live.pop(dropped).freed = True
        by_address = sorted(live, key=lambda block: (block.start, block.stop))
        assert all(a.stop <= b.start for a, b in pairwise(by_address))
        assert all(block.start >= 0 and block.stop <= 1000 * KIB for block in live)


def test_a_block_is_free_again_when_all_within_it_are() -> None:
    ends = TwoStacks(0, 4 * KIB)
    outer, inner = ends.take(2 * KIB), ends.take(KIB)
    outer.freed = True
    with pytest.raises(RuntimeError, match=r"2048 bytes are taken and 1024 of 4096 are free"):
        ends.take(2 * KIB)
    inner.freed = True
    assert ends.take(4 * KIB).stop == 4 * KIB


def capacity(nbytes: int) -> int:
    """Return an arena's capacity less its room for alignment."""
    return nbytes - MOST_ARRAYS * ALIGNMENT


@pytest.mark.usefixtures("addresses_only")
class TestArrays:
    def test_layer_after_layer_fits_what_two_of_them_take(self) -> None:
        sizes = [3, 5, 2, 6, 1, 4, 5]
        most = max(a + b for a, b in pairwise(sizes)) * KIB
        arena = DeviceArena(capacity(most))
        with arena.in_use():
            x = new_device_output((sizes[0] * KIB // 4,))
            for size in sizes[1:]:
                y = new_device_output((size * KIB // 4,))
                x = y
            del x, y
        assert arena.peak == most

    @given(data=st.data(), depth=st.integers(1, 4))
    def test_nested_segments_leave_no_gaps(self, data: st.DataObject, depth: int) -> None:
        """Segments have any number of layers and runs, with workspace before and after outputs."""
        sizes = st.integers(1, 8)
        layers = data.draw(
            st.lists(
                st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=3),
                min_size=depth,
                max_size=depth,
            )
        )
        runs = data.draw(st.lists(st.integers(1, 2), min_size=depth, max_size=depth))

        def nested(held: int) -> int:
            """Return the blocks alive at the peak of the segments from the depth ``held`` on."""
            if held == depth:
                return 0
            peak = stored = 0
            for before, out, after in layers[held]:
                peak = max(peak, stored + before + out + after)
                stored = out
            return max(peak, stored + nested(held + 1))

        def run(segment: int) -> None:
            for _ in range(runs[segment] if segment < depth else 0):
                x = None
                for before, out, after in layers[segment]:
                    first = device_workspace((before * ALIGNMENT,), np.uint8)
                    y = new_device_output((out * ALIGNMENT // 4,))
                    second = device_workspace((after * ALIGNMENT,), np.uint8)
                    del first, second
                    x = y
                    del y
                run(segment + 1)
                del x

        most = nested(0) * ALIGNMENT
        arena = DeviceArena(capacity(most))
        with arena.in_use():
            run(0)
        assert arena.peak <= most

    def test_memory_is_taken_as_long_as_a_view_of_it_lives(self) -> None:
        arena = DeviceArena(capacity(4 * KIB))
        with arena.in_use():
            view = new_device_output((8, 128))[3:, ::2]
            with pytest.raises(RuntimeError, match="are free"):
                device_workspace((KIB,), np.float32)
            del view
            assert device_workspace((KIB,), np.float32).nbytes == 4 * KIB

    def test_every_use_is_laid_out_alike(self) -> None:
        arena = DeviceArena(4 * KIB)
        addresses = set()
        for _ in range(2):
            with arena.in_use():
                addresses.add(new_device_output((100,)).data.ptr)
        assert len(addresses) == 1

    def test_an_output_that_is_given_is_taken(self) -> None:
        arena = DeviceArena(4 * KIB)
        with arena.in_use():
            whole: Any = new_device_output((2, 10))
            with output_into(whole[1:]):
                part = new_device_output((1, 10))
                assert part.data.ptr == whole.data.ptr + 40
                with pytest.raises(ValueError, match="is given where"):
                    new_device_output((2, 10))
        assert arena.peak == ALIGNMENT
