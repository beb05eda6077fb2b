"""Threads that read and write."""

from __future__ import annotations

import os
import signal
from concurrent.futures import wait
from pathlib import Path
from threading import Event, Thread, get_ident
from time import sleep

import numpy as np
import pytest
from forks import forked

from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.machine.io_threads import begin_task, io_threads, mapped
from znni.primitives.cpu.common.workers import workers
from znni.volumes.locate import open_output, open_volume

SIZE, PATCH = Vec3(20, 12, 8), Vec3(10, 12, 8)


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_a_block_is_written_while_all_threads_read(name: str, tmp_path: Path) -> None:
    """Else its tasks would wait for those of whole blocks that are read ahead."""
    values = np.random.default_rng(0).random((1, *SIZE), np.float32)
    output = open_output(tmp_path / name, values, NewOutput(1, SIZE))
    output.begin({}, PATCH)
    go_on, written = Event(), Event()
    reading = [begin_task(go_on.wait) for _ in range(3 * io_threads())]

    def write() -> None:
        for start in (Vec3(0, 0, 0), Vec3(10, 0, 0)):
            box = Box(start, start + PATCH)
            output.write(box, values[:, *box.slices])
        written.set()

    writing = Thread(target=write)
    writing.start()
    try:
        assert written.wait(20)
        assert not any(each.done() for each in reading)
    finally:
        go_on.set()
        wait(reading)
        writing.join()
    output.finish({})
    found = open_volume(tmp_path / name).read(Box(Vec3(0, 0, 0), SIZE))
    np.testing.assert_array_equal(found, values)


def test_the_caller_computes_a_single_item() -> None:
    """A thread is worth its waking only if there are several."""

    def thread(_item: int) -> int:
        return get_ident()

    assert list(mapped(thread, [1], 4)) == [get_ident()]
    assert get_ident() not in mapped(thread, [1, 2], 4)
    assert get_ident() not in mapped(thread, iter(range(1, 3)), 4)


def test_a_fork_starts_threads_of_its_own() -> None:
    """It has none of those that the first process has started."""
    assert list(mapped(abs, range(9), 4)) == list(range(9))
    workers(2).for_each(lambda _worker, _item: None, range(9))
    child = forked()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            seen = set[int]()
            workers(2).for_each(lambda worker, _item: (sleep(0.01), seen.add(worker)), range(90))
            code = 0 if [*mapped(abs, range(9), 4)] == [*range(9)] and seen == {0, 1} else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
