"""Workers give the same numbers however many there are. If one fails, all end."""

from __future__ import annotations

import mmap
import os
import re
import signal
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Timer
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import read_main, refused, succeeds
from doomed_runner import Doomed
from numpy.typing import NDArray
from worker_runners import NETWORK, Sums, SumsPlan, made_when, not_made, not_made_when, sums

import znni
from znni.core.errors import InvalidInput, RunFailed, Unreadable
from znni.core.options import OutputType
from znni.core.shapes import Box, Vec3
from znni.engine.last_blocks import LastBlocks
from znni.engine.pipeline import RunState, run_volume
from znni.engine.skipping import Blocks
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, make_job
from znni.engine.workers.fleet import Fleet, Member
from znni.engine.workers.processes import WaitingProcesses
from znni.engine.workers.slots import Slot, SlotShape
from znni.network.weights import Weights, random_weights
from znni.plans.plan import Plan
from znni.volumes.array import ArrayOutput, ArrayVolume

SIZE = Vec3(22, 14, 13)
PATCH = Vec3(5, 4, 3)
PLAN = SumsPlan(PATCH)


def fleet_of(prepare: Any, count: int = 2, plan: Any = PLAN, dtype: Any = "float32") -> Fleet:
    members = [Member(f"worker {number + 1}", prepare, {}) for number in range(count)]
    return Fleet(plan, members, dtype)


def fleet(count: int = 2, fate: str = "", dtype: OutputType = "float32") -> Fleet:
    return fleet_of(partial(Sums, PLAN, fate), count, dtype=dtype)


class Case:
    """A volume, what is wanted of it, and what was written."""

    def __init__(self, dtype: OutputType = "float32", size: Vec3 = SIZE) -> None:
        self.x = np.random.default_rng(0).random(size, np.float32) / 30
        self.job = make_job(NETWORK, Vec3(*self.x.shape), "valid", "reflect", None)
        self.expected = np.stack([sums(self.x), -sums(self.x)])
        self.found: NDArray[Any] = np.zeros(self.expected.shape, dtype)
        self.remaining = Remaining(self.job)
        self.stopwatch = Stopwatch()
        self.told: list[int] = []
        self.volume = ArrayVolume(self.x)
        self.mask: ArrayVolume | None = None

    def run(self, workers: Fleet, output: Any = None, *, last: bool = False) -> None:
        features, dtype = len(self.found), self.found.dtype
        weights = random_weights(NETWORK, 0)
        state = RunState(
            Blocks(self.volume, self.job, NETWORK, weights, self.mask),
            output or ArrayOutput(self.found, features, self.job.output, dtype),
            dtype.name,  # type: ignore[arg-type]
            self.remaining,
            lambda done, _: self.told.append(done),
        )
        run_volume(state, workers, self.stopwatch, last=last)

    def check_finished_blocks(self) -> None:
        """Check that all that is written is right, and that the rest is still to be done."""
        left = np.ones(self.found.shape[1:], bool)
        for tile in self.remaining.tiles(PATCH):
            left[tile.written.slices] = False
        np.testing.assert_allclose(self.found[:, left], self.expected[:, left], rtol=1e-5)
        assert not self.found[:, ~left].any()


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


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_output_comes_as_it_is_stored(dtype: OutputType) -> None:
    case = Case(dtype)
    case.run(fleet(dtype=dtype))
    scale = 255 if dtype == "uint8" else 1
    expected = (case.expected * scale).clip(0 if dtype == "uint8" else None)
    np.testing.assert_allclose(case.found, expected, atol=0.51 if dtype == "uint8" else 1e-3)


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


@pytest.mark.parametrize(
    ("fate", "error", "said"),
    [
        ("failed", RunFailed, "^the device failed; run again$"),
        ("short of memory", MemoryError, "^$"),
        ("odd", RunFailed, "^Odd: 1 and 2$"),
        ("killed", RunFailed, "^worker [12] was killed by SIGKILL, as systems do where memory"),
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


def test_a_worker_that_cannot_be_made() -> None:
    case = Case()
    with pytest.raises(RunFailed, match=r"^no such device; give another$") as raised:
        case.run(fleet_of(not_made))
    assert "in not_made" in str(raised.value.__cause__)
    assert case.remaining.voxels == case.job.output.volume


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
        Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Stop):
            case.run(workers)
    finally:
        signal.signal(signal.SIGUSR1, before)
    case.check_finished_blocks()


def test_a_late_failure_is_told_though_no_patch_follows() -> None:
    case = Case(size=PLAN.input_patch)
    with pytest.raises(RunFailed, match="failed late"):
        case.run(fleet(1, fate="fails late"))


def test_workers_that_nobody_refers_to_end() -> None:
    workers = fleet()
    processes = [worker.process_id for worker in workers._crew.workers]
    assert all(Path(f"/proc/{number}").exists() for number in processes)
    del workers
    assert not any(Path(f"/proc/{number}").exists() for number in processes)


@pytest.mark.parametrize("module", ["json", "no_such_module"])
def test_processes_start_before_they_are_needed(module: str) -> None:
    """Those that a fleet needs are taken, and the others end."""
    environments = [{"NUMBER": str(number)} for number in range(3)]
    waiting = WaitingProcesses(environments, (module,))
    started = {each.process.pid for each in waiting._waiting.values()}
    assert len(started) == 3
    prepare = partial(Sums, PLAN, "")
    members = [Member(f"worker {number}", prepare, environments[number]) for number in (0, 1)]
    workers = Fleet(PLAN, members, "float32", waiting)
    taken = {worker.process_id for worker in workers._crew.workers}
    assert taken < started
    case = Case()
    case.run(workers)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    del workers, waiting
    assert not any(Path(f"/proc/{number}").exists() for number in started)


def test_waiting_processes_import_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noted.py").write_text(f"open({str(tmp_path / 'seen')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("znni.engine.workers.processes.SLOTS", 0)
    waiting = WaitingProcesses([{}], ("noted",))
    until = time.monotonic() + 60
    while not (tmp_path / "seen").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    del waiting


def test_a_start_that_fails_ends_those_before() -> None:
    started: list[int] = []

    def environments() -> Iterator[dict[str, str]]:
        before = set(psutil.Process().children())
        yield {}
        started.extend(each.pid for each in set(psutil.Process().children()) - before)
        yield {"NAME": "no variable holds \0"}

    with pytest.raises(ValueError, match="null byte"):
        WaitingProcesses(environments(), ())
    (number,) = started
    assert not Path(f"/proc/{number}").exists()


def test_processes_without_a_member_end_with_the_preparation() -> None:
    """A fleet keeps no process that it did not need."""
    waiting = WaitingProcesses([{"NUMBER": "1"}], ())
    (left,) = [each.process.pid for each in waiting._waiting.values()]
    workers = Fleet(PLAN, [Member("worker", partial(Sums, PLAN, ""), {})], "float32", waiting)
    assert Path(f"/proc/{left}").exists()
    del waiting
    assert not Path(f"/proc/{left}").exists()
    case = Case()
    case.run(workers)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


def test_a_fleet_that_ends_frees_its_slots() -> None:
    workers, case = fleet(), Case()
    case.run(workers)
    processes = [worker.process_id for worker in workers._crew.workers]
    freed = [weakref.ref(slot) for worker in workers._crew.workers for slot in worker.slots]
    workers.end()()
    assert not any(Path(f"/proc/{number}").exists() for number in processes)
    assert not any(slot() for slot in freed)


def test_workers_end_while_the_last_block_of_the_last_run_is_written() -> None:
    class Waiting(ArrayOutput):
        def write(self, box: Box, values: NDArray[Any]) -> None:
            super().write(box, values)
            if case.remaining.voxels == box.size.volume:
                until = time.monotonic() + 20
                while any(each.status() != psutil.STATUS_ZOMBIE for each in processes):
                    assert time.monotonic() < until
                    time.sleep(0.01)

    case, workers = Case(), fleet()
    processes = [psutil.Process(worker.process_id) for worker in workers._crew.workers]
    case.run(workers, Waiting(case.found, 2, case.job.output), last=True)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    assert case.stopwatch.seconds.busy.host_layers > 0
    assert workers.workers_memory > 2 * 2**20
    workers.end()()
    assert not any(each.is_running() for each in processes)


def test_no_worker_ends_before_it_has_started_though_no_block_needs_it() -> None:
    case, workers = Case(), fleet()
    case.mask = ArrayVolume(np.zeros(case.x.shape, np.uint8))
    case.run(workers, last=True)
    assert not case.found.any()
    assert workers.workers_memory > 2 * 2**20


def test_a_process_is_told_once_when_all_its_blocks_are_computed() -> None:
    told: list[int] = []
    blocks = LastBlocks([partial(told.append, number) for number in range(3)])
    tiles = blocks.handed_out(make_job(NETWORK, SIZE, "valid", None, None).tiles(SIZE // 2))
    next(tiles)
    next(tiles)
    blocks.begun(1)
    blocks.ready()
    blocks.computed(1)
    for _ in tiles:
        blocks.begun(2)
    assert not told  # the reading of one block has not begun: any process may have taken it
    blocks.begun(0)
    assert told == [1]
    blocks.computed(0)
    assert told == [1, 0]
    while len(told) < 3:
        blocks.computed(2)
    assert told == [1, 0, 2]


def test_a_slot_gives_back_the_memory_of_its_input_alone() -> None:
    shape = SlotShape((1, 300, 20, 20), (1, 90, 20, 20), "uint8")
    descriptor = Slot.memory()
    slot, other = Slot(shape, descriptor), Slot(shape, descriptor)
    slot.block[...] = 7
    slot.dense[...] = 3
    before = os.fstat(descriptor).st_blocks
    slot.free_input()
    pages = shape.block_bytes // mmap.PAGESIZE
    assert before - os.fstat(descriptor).st_blocks == pages * mmap.PAGESIZE // 512
    assert (other.dense == 3).all()
    assert not other.block[0, 0].any()
    os.close(descriptor)


def test_a_slot_is_touched_until_that_is_over() -> None:
    shape = SlotShape((1, 300, 20, 20), (1, 5, 5, 5), "uint8")
    descriptor, over = Slot.memory(), Event()
    slot = Slot(shape, descriptor)
    over.set()
    slot.touch(over)
    assert not os.fstat(descriptor).st_blocks
    over.clear()
    slot.touch(over)
    assert os.fstat(descriptor).st_blocks * 512 >= shape.nbytes
    os.close(descriptor)


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


def test_workers_import_nothing_from_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)
    case = Case()
    case.run(fleet())
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


def test_a_slot_is_touched_while_it_is_in_use() -> None:
    shape = SlotShape((1, 300, 20, 20), (1, 5, 5, 5), "uint8")
    descriptor = Slot.memory()
    slot, other = Slot(shape, descriptor), Slot(shape, descriptor)
    os.close(descriptor)
    slot.block[...] = 7
    slot.dense[...] = 3
    other.touch(Event())
    slot.touch(Event())
    assert (other.block == 7).all()
    assert (other.dense == 3).all()


def test_a_process_whose_slots_cannot_be_made_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> Any:
        raise MemoryError

    waiting = WaitingProcesses([{}], ())
    (started,) = [each.process.pid for each in waiting._waiting.values()]
    monkeypatch.setattr("znni.engine.workers.worker.Slot", no_memory)
    with pytest.raises(MemoryError):
        Fleet(PLAN, [Member("worker", partial(Sums, PLAN, ""), {})], "float32", waiting)
    assert not Path(f"/proc/{started}").exists()


def run_in_two_processes(monkeypatch: pytest.MonkeyPatch, fate: str) -> None:
    """Let plans for the host be run like those for several GPUs."""

    def prepare(
        plan: Plan, weights: Weights, _measured: Any, dtype: OutputType, _waiting: None
    ) -> Fleet:
        return fleet_of(partial(Doomed, plan, weights, fate), 2, plan, dtype)

    monkeypatch.setattr("znni.inference.api.prepare", prepare)


@pytest.mark.usefixtures("small_case")
def test_workers_stay_for_further_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    leave = Fleet.leave

    def noted(workers: Fleet, number: int) -> None:
        left.append(number)
        leave(workers, number)

    monkeypatch.setattr(Fleet, "leave", noted)
    run_in_two_processes(monkeypatch, fate="")
    run = ("--net", "tiny.yaml", "--out", "many/", "--device", "cpu", "--ram", "1GiB")
    Path("other.h5").write_bytes(Path("volume.h5").read_bytes())
    succeeds("infer", "volume.h5", "other.h5", *run)
    assert not left
    succeeds("infer", "volume.h5", *run[:3], "one.h5", *run[4:])
    assert sorted(left) == [0, 1]


@pytest.mark.usefixtures("small_case")
def test_whole_runs_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They give the same bytes, and keep their blocks if a worker is killed."""
    search = znni.search("tiny.yaml", (7, 20, 23), device="cpu", threads=1, costs="built-in")
    plan = search.fastest_for(Vec3(2, 4, 6))
    assert plan is not None
    Path("plan.json").write_text(plan.to_json())
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json", "--out")
    succeeds(*run, "one.h5")
    whole = read_main("one.h5")
    run_in_two_processes(monkeypatch, fate="")
    assert "voxels in" in succeeds(*run, "two.h5")
    np.testing.assert_array_equal(read_main("two.h5"), whole)
    run_in_two_processes(monkeypatch, fate="killed")
    said = refused(*run, "out.h5", code=4)
    assert re.match(r"worker [12] was killed by SIGKILL, as systems do where memory runs out", said)
    assert re.search(r"out.h5.partial holds \d+ finished block", said)
    found = read_main("out.h5.partial")
    assert 0 < np.count_nonzero(found) < whole.size
    np.testing.assert_array_equal(found[found != 0], whole[found != 0])
