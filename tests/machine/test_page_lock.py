"""Locked pages of an arena stay locked as long as a GPU may copy from its arrays."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from znni.machine import arena
from znni.machine.arena import Arena, new_output

MIB = 2**20


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Replace CUDA's runtime, and return the locked bytes by their addresses."""
    found: dict[int, int] = {}
    runtime = SimpleNamespace(
        hostRegister=lambda address, nbytes, _flags: found.update({address: nbytes}),
        hostUnregister=found.pop,
    )
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(arena, "cupy", lambda: cupy)
    return found


def test_pages_are_locked_until_the_last_array_is_gone(locked: dict[int, int]) -> None:
    owner = Arena(4 * MIB, page_locked=True)
    assert list(locked.values()) == [owner.capacity]
    with owner.in_use():
        y = new_output((1, 1, 64, 64, 64))
    (address,) = locked
    assert address <= y.ctypes.data < address + owner.capacity
    del owner
    gc.collect()
    assert locked
    del y
    gc.collect()
    assert not locked


def test_pages_are_there_before_they_are_locked(
    locked: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one core would find and clear them while they are locked."""
    process, resident = psutil.Process(), list[int]()

    def register(address: int, nbytes: int, _flags: int) -> None:
        locked[address] = nbytes
        resident.append(process.memory_info().rss)

    monkeypatch.setattr(arena.cupy().cuda.runtime, "hostRegister", register)
    before = process.memory_info().rss
    Arena(200 * MIB, page_locked=True)
    assert resident[0] - before > 190 * MIB


def test_an_ordinary_arena_is_not_locked(locked: dict[int, int]) -> None:
    Arena(MIB)
    assert not locked


def test_locked_pages_do_not_go_back(locked: dict[int, int]) -> None:
    """Otherwise a GPU would copy to pages that are gone."""
    owner = Arena(4 * MIB, page_locked=True)
    shape = (1, 1, 1, 512, 512)  # a MiB
    with owner.in_use():
        first = new_output(shape)
        first.fill(1.0)
        address = first.ctypes.data
        del first
        beyond = new_output((1, 1, 8, 512, 512))  # has pages of its own
        assert not any(a <= beyond.ctypes.data < a + n for a, n in locked.items())
        del beyond
        again = [new_output(shape) for _ in range(4)]
    (same,) = (y for y in again if y.ctypes.data == address)
    np.testing.assert_array_equal(same, 1.0)
