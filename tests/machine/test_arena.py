"""The arena gives each array its own memory, reuses it, and holds no more than its capacity."""

from __future__ import annotations

import gc
import mmap
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from znni.machine.arena import SMALL, Arena, new_output, workspace
from znni.machine.arrays import ALIGNMENT, peak_memory

MIB = 2**20


@given(st.lists(st.tuples(st.integers(1, 400_000), st.booleans(), st.integers(0, 5)), max_size=30))
def test_live_arrays_never_share_memory(requests: list[tuple[int, bool, int]]) -> None:
    arena = Arena(2 * MIB)
    live: list[tuple[int, np.ndarray]] = []
    with arena.in_use():
        for value, (size, is_output, dropped) in enumerate(requests):
            array = new_output((size,)) if is_output else workspace((size,), np.int32)
            assert array.ctypes.data % ALIGNMENT == 0
            array[:] = value
            live.append((value, array))
            if dropped < len(live):
                del live[dropped]
            for expected, kept in live:
                assert (kept == expected).all()


def test_layer_after_layer_fits_what_two_of_them_take() -> None:
    sizes = [3, 5, 2, 6, 1, 4, 5]
    capacity = max(a + b for a, b in pairwise(sizes)) * MIB
    arena = Arena(capacity)
    with arena.in_use(), peak_memory() as peak:
        x = new_output((sizes[0] * MIB // 4,))
        for size in sizes[1:]:
            y = new_output((size * MIB // 4,))
            y[:] = 1
            x = y
    del x, y
    assert peak.added < capacity + MIB


def test_pages_are_kept_and_outlive_the_arena() -> None:
    arena = Arena(8 * MIB)
    with arena.in_use():
        first = new_output((MIB,))
        first[:] = 1
        del first
        with peak_memory() as peak:
            workspace((MIB // 2,), np.float32)[:] = 2
        kept = new_output((MIB,))
        kept[:] = 3
    assert peak.added < MIB
    del arena
    gc.collect()
    assert (kept == 3).all()


def test_what_finds_no_room_in_one_piece_takes_no_more_in_all() -> None:
    arena = Arena(40 * MIB)
    piece = 10 * MIB // 4
    with arena.in_use(), peak_memory() as peak:
        arrays = [workspace((piece,), np.float32) for _ in range(4)]
        for array in arrays:
            array[:] = 1
        del array, arrays[2], arrays[0]
        large = workspace((2 * piece,), np.float32)
        large[:] = 2
        assert all((array == 1).all() for array in arrays)
    assert peak.added < 44 * MIB  # the system takes back whole huge pages only


def test_every_use_is_laid_out_alike() -> None:
    arena = Arena(4 * MIB)
    addresses = set()
    for _ in range(2):
        with arena.in_use():
            addresses.add(new_output((MIB // 4,)).ctypes.data)
    assert len(addresses) == 1


def test_alignment_takes_no_room_from_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [SMALL + 1, SMALL + 1, SMALL + mmap.PAGESIZE - 2]
    arena = Arena(sum(sizes))
    monkeypatch.setattr(
        "znni.machine.arena.map_pages", lambda nbytes: pytest.fail(f"{nbytes} outside")
    )
    with arena.in_use():
        arrays = [workspace((size,), np.uint8) for size in sizes]
    assert [array.size for array in arrays] == sizes


@pytest.mark.parametrize("size", [0, 1, SMALL // 4 - 1, SMALL // 4, SMALL])
def test_sizes_around_the_smallest_that_is_shared(size: int) -> None:
    for arena in (None, Arena(MIB)):
        if arena:
            with arena.in_use():
                array = new_output((size,))
        else:
            array = new_output((size,))
        array[:] = 5
        assert array.shape == (size,)
        assert array.flags.writeable


def test_a_system_without_huge_pages_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)  # as unknown to the kernel
    array = new_output((SMALL,))
    array[:] = 5
    assert (array == 5).all()
