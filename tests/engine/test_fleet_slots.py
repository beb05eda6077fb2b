"""Slots of workers give back their memory."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from pathlib import Path
from threading import Event, Thread

import pytest
from fleet_cases import Case, fleet

from znni.engine.workers.processes import new_memory
from znni.engine.workers.slots import Slot, SlotShape


@pytest.mark.slow
def test_a_fleet_that_ends_frees_its_slots() -> None:
    workers, case = fleet(), Case()
    case.run(workers)
    processes = [worker.process_id for worker in workers._crew.workers]
    freed = [weakref.ref(slot) for worker in workers._crew.workers for slot in worker.slots]
    workers.end()()
    assert not any(Path(f"/proc/{number}").exists() for number in processes)
    assert not any(slot() for slot in freed)


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_slots_are_freed_after_their_last_blocks_if_no_run_follows(
    monkeypatch: pytest.MonkeyPatch, *, last: bool
) -> None:
    freed: list[Slot] = []

    def free(slot: Slot) -> None:
        freed.append(slot)

    monkeypatch.setattr(Slot, "free", free)
    workers, case = fleet(), Case()
    slots = {id(slot) for worker in workers._crew.workers for slot in worker.slots}
    case.run(workers, last=last)
    workers.end()()
    assert {id(slot) for slot in freed} == (slots if last else set())
    assert len(freed) == (len(slots) if last else 0)


def test_a_slot_gives_back_the_memory_of_its_input_and_then_all() -> None:
    shape = SlotShape((1, 300, 20, 20), 4, (1, 90, 20, 20), "uint8")
    descriptor = new_memory()
    slot, other = Slot(shape, descriptor), Slot(shape, descriptor)
    slot.block(shape.block)[...] = 7
    slot.dense[...] = 3
    before = os.fstat(descriptor).st_blocks
    slot.free_input()
    pages = shape.block_bytes // mmap.PAGESIZE
    assert before - os.fstat(descriptor).st_blocks == pages * mmap.PAGESIZE // 512
    assert (other.dense == 3).all()
    assert not other.block(shape.block)[0, 0].any()
    slot.free()
    left = shape.nbytes % mmap.PAGESIZE  # of a page that is not whole
    assert os.fstat(descriptor).st_blocks * 512 == (mmap.PAGESIZE if left else 0)
    os.close(descriptor)


def test_other_threads_go_on_while_a_slot_gives_back_its_memory() -> None:
    """Here a thread hands over the interpreter only where it releases its lock."""
    shape, descriptor = SlotShape((1, 200, 500, 500), 4, (1, 1, 1, 1), "uint8"), new_memory()
    slot, over, turns = Slot(shape, descriptor), Event(), [0]
    os.close(descriptor)
    slot.touch(Event())

    def go_on() -> None:
        while not over.wait(0.0005):
            turns[0] += 1

    other, interval = Thread(target=go_on), sys.getswitchinterval()
    other.start()
    try:
        sys.setswitchinterval(60)
        before = turns[0]
        slot.free_input()
        after = turns[0]
    finally:
        sys.setswitchinterval(interval)
        over.set()
        other.join()
    assert after > before


def test_a_slot_is_touched_until_that_is_over() -> None:
    shape = SlotShape((1, 300, 20, 20), 4, (1, 5, 5, 5), "uint8")
    descriptor, over = new_memory(), Event()
    slot = Slot(shape, descriptor)
    over.set()
    slot.touch(over)
    assert not os.fstat(descriptor).st_blocks
    over.clear()
    slot.touch(over)
    assert os.fstat(descriptor).st_blocks * 512 >= shape.nbytes
    os.close(descriptor)


def test_a_slot_is_touched_while_it_is_in_use() -> None:
    shape = SlotShape((1, 300, 20, 20), 4, (1, 5, 5, 5), "uint8")
    descriptor = new_memory()
    slot, other = Slot(shape, descriptor), Slot(shape, descriptor)
    os.close(descriptor)
    slot.block(shape.block)[...] = 7
    slot.dense[...] = 3
    other.touch(Event())
    slot.touch(Event())
    assert (other.block(shape.block) == 7).all()
    assert (other.dense == 3).all()


def test_a_fleet_that_ends_waits_for_no_slot_to_be_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched: list[Slot] = []

    def touch(slot: Slot, over: Event) -> None:
        touched.append(slot)
        assert over.wait(20)

    monkeypatch.setattr(Slot, "touch", touch)
    workers = fleet()
    slots = [slot for worker in workers._crew.workers for slot in worker.slots]
    workers.end()()
    touching = workers._crew._touching
    assert touching is not None
    assert not touching.is_alive()
    assert 1 <= len(touched) <= len(slots)
    touched.clear()
    freed = [weakref.ref(slots.pop()) for _ in range(len(slots))]
    assert not any(slot() for slot in freed)
