"""Workers give the same numbers however many there are. If one fails, all end."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
from fleet_cases import PATCH, PLAN, Case, fleet, fleet_of
from numpy.typing import NDArray
from worker_runners import made_when, not_made, not_made_when

from znni.core.errors import InvalidInput, RunFailed, Unreadable
from znni.core.option_types import OutputType
from znni.core.shapes import Box, Vec3
from znni.engine.pipeline import Turn
from znni.engine.tiles import Remaining
from znni.volumes.array import ArrayOutput, ArrayVolume


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_the_numbers_are_the_same_for_any_number_of_workers(count: int) -> None:
    case = Case()
    workers = fleet(count)
    for _ in range(2):  # the second time with what is there
        case.found[...] = np.nan
        case.told.clear()
        case.remaining = Remaining(case.job)
        case.run(workers)
        np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
        assert case.told == sorted(case.told)
        assert case.told[-1] == case.job.output.volume
    spent = case.stopwatch.seconds
    assert 0 < spent.busy.host_layers < spent.running
    assert 0 < spent.busy.reading < spent.building + spent.running  # it begins while they get ready
    assert 0 < spent.busy.writing < spent.running
    assert workers.workers_memory > count * 2**20
    assert workers.gpu_peak_memory == 0


@pytest.mark.slow
def test_seconds_of_reading_are_not_divided_among_workers() -> None:
    """One process reads for all, here a single block."""

    class Slow(ArrayVolume):
        def read(self, box: Box) -> NDArray[Any]:
            time.sleep(0.2)
            return super().read(box)

    case = Case(size=Vec3.of(6))
    case.volume = Slow(case.x)
    case.run(fleet(2))
    assert case.stopwatch.seconds.busy.reading > 0.2


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_output_comes_as_it_is_stored(dtype: OutputType) -> None:
    case = Case(dtype)
    case.run(fleet(dtype=dtype))
    scale = 255 if dtype == "uint8" else 1
    expected = (case.expected * scale).clip(0 if dtype == "uint8" else None)
    np.testing.assert_allclose(case.found, expected, atol=0.51 if dtype == "uint8" else 1e-3)


@pytest.mark.slow_cases
@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 0)])
def test_a_run_may_only_follow_before_the_end_if_one_process_computes(
    count: int, expected: int
) -> None:
    """Outputs of several processes lie in their slots, which a further run would take."""
    read: list[None] = []
    computed: list[None] = []
    workers, case = fleet(count), Case()
    turn = Turn(all_read=lambda: read.append(None), computed=lambda: computed.append(None))
    case.run(workers, turn=turn)
    workers.end()()
    assert len(computed) == expected
    assert not read
    case.check_finished_blocks()


@pytest.mark.slow
def test_blocks_that_need_no_work_are_not_given_to_workers() -> None:
    case = Case()
    mask = np.zeros(case.x.shape, np.uint8)
    mask[:10] = 1
    case.mask = ArrayVolume(mask)
    case.run(fleet())
    rows = -(-(10 - case.job.center.z) // PATCH.z) * PATCH.z
    np.testing.assert_allclose(case.found[:, :rows], case.expected[:, :rows], rtol=1e-5)
    assert not case.found[:, rows:].any()
    assert not case.remaining.voxels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "error", "said"),
    [
        ("failed", RunFailed, "^the device failed; run again$"),
        ("short of memory", MemoryError, "^$"),
        ("odd", RunFailed, "^Odd: 1 and 2$"),
        ("killed", RunFailed, "^worker [12] was killed by SIGKILL, as systems do where memory"),
        ("killed by a real-time signal", RunFailed, r"^worker [12] was killed by signal \d+, as"),
        ("ends", RunFailed, r"^worker [12] ended before its work was done \(exit code 3\)"),
    ],
)
def test_what_befalls_a_worker_ends_all_and_leaves_what_was_written(
    fate: str, error: type[BaseException], said: str
) -> None:
    case, workers = Case(), fleet(fate=fate)
    with pytest.raises(error, match=said):
        case.run(workers)
    case.check_finished_blocks()
    assert case.remaining.voxels < case.job.output.volume


@pytest.mark.slow
def test_after_a_failure_a_run_goes_on_with_others() -> None:
    case, workers = Case(), fleet()
    values = case.x[12, 3, 4]
    case.x[12, 3, 4] = np.nan
    with pytest.raises(InvalidInput, match="nan at voxel z=12, y=3, x=4"):
        case.run(workers)
    case.check_finished_blocks()
    case.x[12, 3, 4] = values
    case.run(workers)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


def test_a_worker_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    case, forgotten = Case(), list[bool]()
    monkeypatch.setattr("znni.engine.workers.fleet.forget_gpus", lambda: forgotten.append(True))
    with pytest.raises(RunFailed, match=r"^no such device; give another$") as raised:
        case.run(fleet_of(not_made))
    assert "in not_made" in str(raised.value.__cause__)
    assert forgotten  # a GPU may be one that CUDA cannot use any more
    assert case.remaining.voxels == case.job.output.volume


@pytest.mark.slow
def test_the_first_blocks_are_read_while_workers_get_ready(tmp_path: Path) -> None:
    """Here they get ready after the first block was read, and not before."""

    class Seen(ArrayVolume):
        def read(self, box: Box) -> NDArray[Any]:
            (tmp_path / "seen").touch()
            return super().read(box)

    case = Case()
    case.volume = Seen(case.x)
    case.run(fleet_of(partial(made_when, tmp_path / "seen", PLAN)))
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    assert case.stopwatch.seconds.building > 0


@pytest.mark.slow
def test_what_fails_in_reading_is_raised_though_a_worker_cannot_be_made_after_it(
    tmp_path: Path,
) -> None:
    class Torn(ArrayVolume):
        def read(self, box: Box) -> NDArray[Any]:
            (tmp_path / "read").touch()
            raise Unreadable(f"the disk is torn at {box.start}")

    case = Case()
    case.volume = Torn(case.x)
    with pytest.raises(Unreadable, match="the disk is torn"):
        case.run(fleet_of(partial(not_made_when, tmp_path / "read"), 1))


@pytest.mark.slow
def test_what_fails_in_writing_is_raised_as_itself() -> None:
    class Full(ArrayOutput):
        written = 0

        def write(self, box: Box, values: NDArray[Any]) -> None:
            self.written += 1
            if self.written > 2:
                raise RunFailed("the disk is full")
            super().write(box, values)

    case = Case()
    with pytest.raises(RunFailed, match="the disk is full"):
        case.run(fleet(), output=Full(case.found, 2, case.job.output))
    case.check_finished_blocks()


def test_a_signal_ends_workers_at_once() -> None:
    class Stop(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stop

    case, workers = Case(), fleet(fate="slow")
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(Stop):  # noqa: PT012 - the signal may come at once
            Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            case.run(workers)
    finally:
        signal.signal(signal.SIGUSR1, before)
    case.check_finished_blocks()


def test_a_late_failure_is_told_though_no_patch_follows() -> None:
    case = Case(size=PLAN.input_patch)
    with pytest.raises(RunFailed, match="failed late"):
        case.run(fleet(1, fate="fails late"))
