"""GPUs are found quickly, and what is known of them is what CUDA found."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

import pytest

from znni.core.errors import RunFailed
from znni.core.user_cache import user_cache
from znni.core.value_cache import load_value
from znni.inference.prestart import processes_for, several_waiting
from znni.machine import cuda, gpus, known_gpus, nvml
from znni.machine.gpus import (
    check_gpus,
    detect_gpus,
    forget_answer,
    forget_gpus,
    look_at_gpus,
    start_driver,
)

GIB = 2**30
CONTEXT = 500 * 2**20
NUMBERS = {
    "MultiProcessorCount": 132,
    "ClockRate": 1_980_000,
    "GlobalMemoryBusWidth": 6144,
    "MemoryClockRate": 3_201_000,
}


def identity(number: int) -> str:
    return f"GPU-{UUID(int=number)}"


class CudaFailed(Exception):
    """What CUDA's runtime raises."""


@dataclass
class FakeMachine:
    """A machine with GPUs, as its driver, its management library and CuPy tell of them.

    Attributes:
        free: the free bytes of each GPU, by identity, in the management library's order.
        order: the identities in CUDA's order.
        version: the driver's version.
        fails: the call that fails.
        divided: whether the GPUs are divided into instances.
        hidden: GPUs that this process may not use.
        contexts: GPUs with a context of this process, which takes memory.
        called: the calls, in order.
    """

    free: dict[int, int]
    order: list[int]
    version: str = "580.1"
    fails: str = ""
    divided: bool = False
    hidden: set[int] = field(default_factory=set)
    contexts: set[int] = field(default_factory=set)
    called: list[str] = field(default_factory=list)

    def _note(self, name: str) -> int:
        self.called.append(name)
        return 999 if name == self.fails else 0

    def left(self, number: int) -> int:
        return self.free[number] - CONTEXT * (number in self.contexts)

    # The driver.

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's names
        return self._note("init")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.order)
        return self._note("count")

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = self.order[number]
        return self._note("device")

    def cuDeviceGetUuid(self, identity: Any, device: ctypes.c_int) -> int:  # noqa: N802
        identity._obj[:] = list(UUID(int=device.value).bytes)
        return self._note("uuid")

    def cuDevicePrimaryCtxGetState(  # noqa: N802
        self, device: ctypes.c_int, _flags: Any, active: Any
    ) -> int:
        active._obj.value = device.value in self.contexts
        return self._note("state")

    def cuDevicePrimaryCtxRetain(self, _context: Any, device: ctypes.c_int) -> int:  # noqa: N802
        self.contexts.add(device.value)
        return self._note("context")

    # The management library.

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.free)
        return self._note("seen")

    def nvmlSystemGetDriverVersion(self, text: Any, _length: int) -> int:  # noqa: N802
        text.value = self.version.encode()
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = list(self.free)[number]
        return 4 if handle._obj.value in self.hidden else 0

    def nvmlDeviceGetMigMode(self, _handle: Any, mode: Any, _pending: Any) -> int:  # noqa: N802
        mode._obj.value = self.divided
        return 0 if self.divided else 3

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.free = self.left(handle.value)
        return self._note("memory")

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, _length: int) -> int:  # noqa: N802
        text.value = identity(handle.value).encode()
        return 0

    # CuPy.

    def cupy(self) -> Any:
        return SimpleNamespace(
            cuda=SimpleNamespace(
                Device=self.device,
                memory=SimpleNamespace(OutOfMemoryError=CudaFailed),
                driver=SimpleNamespace(CUDADriverError=CudaFailed),
                runtime=SimpleNamespace(
                    CUDARuntimeError=CudaFailed,
                    getDeviceCount=self.get_count,
                    driverGetVersion=lambda: 13000,
                    runtimeGetVersion=lambda: 13000,
                    getDeviceProperties=lambda number: {"name": f"chip {number}".encode()},
                ),
            ),
            get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
        )

    def get_count(self) -> int:
        if self._note("cuda"):
            raise CudaFailed("cudaErrorUnknown")
        return len(self.order)

    @contextmanager
    def device(self, number: int) -> Iterator[Any]:
        if self._note("look"):
            raise CudaFailed("cudaErrorECCUncorrectable")
        left = self.left(self.order[number])
        yield SimpleNamespace(
            attributes=NUMBERS, compute_capability="90", mem_info=(left, 2 * left)
        )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def process_on(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Begin a process on a machine: nothing has started, and nothing is remembered in it."""
    machine.called.clear()
    machine.contexts.clear()
    monkeypatch.setattr(gpus, "_cuda", gpus._Cuda())
    for name in ("missing_for_gpu", "has_driver"):
        getattr(gpus, name).cache_clear()
    monkeypatch.setattr(gpus, "_driver", lambda: machine)
    monkeypatch.setattr(gpus, "find_spec", lambda _name: True)
    monkeypatch.setattr(nvml, "_library", lambda: machine)
    monkeypatch.setattr(known_gpus, "cupy_folders", lambda: ["cupy_cuda13x-14.2.0"])
    for module in (gpus, cuda):
        monkeypatch.setattr(module, "cupy", machine.cupy)
    return machine


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for name in ("missing_for_gpu", "has_driver"):
        getattr(gpus, name).cache_clear()


def two_gpus() -> FakeMachine:
    """Return a machine with two GPUs, which CUDA counts in another order than the driver."""
    return FakeMachine({7: 100 * GIB, 5: 60 * GIB}, [5, 7])


def started(machine: FakeMachine) -> bool:
    return bool({"init", "cuda", "look"} & set(machine.called))


def kept_files() -> list[Path]:
    """Return the files that tell of GPUs."""
    files = (user_cache() / "gpus").glob("*")
    return [file for file in files if load_value(file, list)]


def test_a_gpu_that_cuda_found_before_is_found_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    found = detect_gpus()
    assert started(machine)
    assert [gpu.memory for gpu in found] == [60 * GIB - CONTEXT, 100 * GIB - CONTEXT]
    process_on(machine, monkeypatch)
    assert detect_gpus() == found
    assert not started(machine)


def test_free_memory_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same whether CUDA has started or not: what CUDA takes is taken off beforehand."""
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    process_on(machine, monkeypatch)
    machine.free[5] = 10 * GIB
    assert detect_gpus()[0].memory == 10 * GIB - CONTEXT
    machine.free[5] = 20 * GIB
    before = detect_gpus()
    assert before[0].memory == 20 * GIB - CONTEXT
    assert look_at_gpus() == before
    assert detect_gpus() == before
    machine.free[5] = CONTEXT // 2
    process_on(machine, monkeypatch)
    assert detect_gpus()[0].memory == 0


def test_while_cuda_starts_free_memory_is_that_before(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    found = look_at_gpus()
    process_on(machine, monkeypatch)
    gpus._cuda.begin()
    start_driver(machine)
    assert detect_gpus() == found


def test_cuda_that_began_early_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    found = look_at_gpus()
    process_on(machine, monkeypatch)
    gpus.begin_cuda()
    assert detect_gpus() == found
    assert look_at_gpus() == found
    assert machine.called.count("init") == 1
    assert "look" in machine.called, "CuPy looks at the GPUs after that"


@pytest.mark.parametrize("lacks", ["_driver", "find_spec"])
def test_cuda_begins_only_where_it_can_be_used(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    monkeypatch.setattr(gpus, lacks, lambda *_: None)
    gpus.begin_cuda()
    assert not started(machine)


def test_an_error_of_cuda_that_began_early_is_raised_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    monkeypatch.setattr(gpus, "start_driver", mock.Mock(side_effect=MemoryError))
    gpus.begin_cuda()
    with pytest.raises(MemoryError):
        look_at_gpus()
    assert not started(machine)


def test_the_memory_that_workers_take_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the same run gets the same plan, whether they have started CUDA or not."""
    machine = process_on(two_gpus(), monkeypatch)
    found = look_at_gpus()
    process_on(machine, monkeypatch)
    monkeypatch.setattr("znni.engine.workers.processes.WaitingProcesses", lambda *_: "started")
    assert several_waiting([0, 1]) == "started"
    assert gpus._cuda.asking is not None
    gpus._cuda.asking.join()
    machine.free[5] -= CONTEXT
    assert detect_gpus() == found
    forget_answer()  # the run is planned
    later = detect_gpus()
    assert later[0].memory == found[0].memory - CONTEXT, "a later run asks again"
    assert later[1:] == found[1:]
    assert not started(machine)


def test_an_answer_that_comes_late_is_forgotten_with_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process_on(two_gpus(), monkeypatch)
    planned, look, before = Event(), nvml.look, set(enumerate_threads())

    def late() -> Any:
        planned.wait(0.2)
        return look()

    monkeypatch.setattr(nvml, "look", late)
    monkeypatch.setattr("znni.engine.workers.processes.WaitingProcesses", lambda *_: "started")
    several_waiting([0, 1])
    forget_answer()
    planned.set()
    for thread in set(enumerate_threads()) - before:
        thread.join()
    monkeypatch.setattr(nvml, "look", lambda: None)
    assert gpus._cuda.before() is None, "a later run asks again"


def test_what_cuda_takes_is_without_what_workers_took_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    gpus._cuda.ask()
    machine.free[5] -= GIB
    look_at_gpus()
    (file,) = kept_files()
    assert [gpu.taken for gpu in load_value(file, list) or []] == [CONTEXT, CONTEXT]


def test_no_worker_starts_while_cuda_finds_the_gpus_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what CUDA takes in this process would seem to be what both take."""
    machine = process_on(two_gpus(), monkeypatch)
    monkeypatch.setattr("znni.machine.gpus_option.has_driver", lambda: True)
    monkeypatch.setattr("znni.engine.workers.processes.WaitingProcesses", lambda *_: "started")
    assert processes_for("gpu", 2) is None
    look_at_gpus()
    process_on(machine, monkeypatch)
    assert processes_for("gpu", 2) == "started"
    forget_answer()
    assert not started(machine)


@pytest.mark.parametrize("what", ["driver", "cupy", "visible", "order", "another", "one less"])
def test_cuda_is_asked_if_anything_differs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    process_on(machine, monkeypatch)
    match what:
        case "driver":
            machine.version = "581.0"
        case "cupy":
            both = ["cupy_cuda12x-14.2.0", "cupy_cuda13x-14.2.0"]
            monkeypatch.setattr(known_gpus, "cupy_folders", lambda: both)
        case "visible":
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        case "order":
            monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        case "another":
            machine.free, machine.order = {8: GIB, 5: GIB}, [5, 8]
        case "one less":
            machine.hidden, machine.order = {7}, [5]
    detect_gpus()
    assert started(machine)
    process_on(machine, monkeypatch)
    if what == "cupy":
        monkeypatch.setattr(known_gpus, "cupy_folders", lambda: both)
    detect_gpus()
    assert not started(machine)


@pytest.mark.parametrize("what", ["divided", "seen", "memory", "no library", "no driver"])
def test_nothing_is_known_if_the_driver_does_not_tell_all(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    process_on(machine, monkeypatch)
    if what == "divided":
        machine.divided = True
    elif what == "no library":
        monkeypatch.setattr(nvml, "_library", lambda: None)
    elif what == "no driver":
        monkeypatch.setattr(gpus, "_driver", lambda: None)
        assert detect_gpus() == []
        return
    else:
        machine.fails = what
    assert [gpu.name for gpu in detect_gpus()] == ["chip 0", "chip 1"]
    assert started(machine)


def test_what_is_not_plausible_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context was there before; or others took or gave back memory while CUDA started."""
    machine = process_on(two_gpus(), monkeypatch)
    machine.contexts.add(5)
    look_at_gpus()
    assert not kept_files()
    process_on(machine, monkeypatch)
    gpus._cuda.begin()
    machine.free[5] += GIB
    look_at_gpus()
    assert not kept_files()
    process_on(machine, monkeypatch)
    gpus._cuda.begin()
    machine.free[5] -= 4 * GIB
    look_at_gpus()
    assert not kept_files()
    process_on(machine, monkeypatch)
    monkeypatch.setattr(gpus, "ALIKE", 0)  # CUDA counts memory in another way
    look_at_gpus()
    assert not kept_files()


def test_a_damaged_file_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    found = look_at_gpus()
    (file,) = kept_files()
    file.write_bytes(file.read_bytes()[:-1])
    process_on(machine, monkeypatch)
    assert detect_gpus() == found
    assert started(machine)


def test_a_gpu_that_is_known_and_cannot_be_used_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next run knows of no GPU, and says why it uses none."""
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    process_on(machine, monkeypatch)
    machine.fails = "cuda"
    assert len(detect_gpus()) == 2
    with pytest.raises(RunFailed, match=r"cannot be used: CUDA finds no GPU .*run again, or with"):
        check_gpus()
    process_on(machine, monkeypatch)
    assert detect_gpus() == []


def test_a_gpu_that_fails_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    process_on(machine, monkeypatch)
    machine.fails = "look"
    detect_gpus()
    for _ in "12":
        with pytest.raises(RunFailed, match="cudaErrorECCUncorrectable"):
            check_gpus()
    assert not kept_files()


def test_gpus_that_are_forgotten_are_found_by_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    detect_gpus()
    forget_gpus()
    assert not kept_files()
    process_on(machine, monkeypatch)
    detect_gpus()
    assert started(machine)


def test_other_gpus_than_promised_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    process_on(machine, monkeypatch)
    detect_gpus()
    machine.order.reverse()
    with pytest.raises(RunFailed, match="CUDA finds others than in earlier runs; run again"):
        check_gpus()
    process_on(machine, monkeypatch)
    assert [gpu.memory for gpu in detect_gpus()] == [100 * GIB - CONTEXT, 60 * GIB - CONTEXT]
    check_gpus()


def test_gpus_that_are_not_those_promised_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What replaces them cannot be known where another library has started CUDA before."""
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    machine.order.reverse()
    process_on(machine, monkeypatch).contexts.add(5)
    detect_gpus()
    with pytest.raises(RunFailed, match="others than in earlier runs; run again"):
        check_gpus()
    process_on(machine, monkeypatch).contexts.add(5)
    detect_gpus()
    check_gpus()


def test_a_check_starts_cuda_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    check_gpus()
    assert started(machine)
    machine.called.clear()
    check_gpus()
    assert not machine.called


def test_a_known_gpu_stands_for_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    assert detect_gpus()[0].capability == 90
    process_on(machine, monkeypatch)
    monkeypatch.setenv(cuda.STAND_IN, "8.0")
    assert detect_gpus()[0].capability == 80
    assert not started(machine)


def test_a_figure_that_hardly_changed_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = process_on(two_gpus(), monkeypatch)
    look_at_gpus()
    (file,) = kept_files()
    before = file.stat().st_mtime_ns
    for change, written in ((2**20, False), (100 * 2**20, True)):
        process_on(machine, monkeypatch)
        monkeypatch.setattr("test_gpus.CONTEXT", CONTEXT + change)
        look_at_gpus()
        assert (file.stat().st_mtime_ns > before) == written


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    process_on(two_gpus(), monkeypatch)
    assert len(look_at_gpus()) == 2
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("fails", ["init", "count", "device", "uuid", "state"])
def test_a_driver_that_fails_is_left_to_cupy(fails: str) -> None:
    machine = two_gpus()
    machine.fails = fails
    assert not start_driver(machine).alone
    assert "context" not in machine.called


def test_without_a_driver_nothing_starts() -> None:
    assert start_driver(None) == gpus.NOT_STARTED
    assert start_driver(SimpleNamespace(cuInit=lambda _: 0, cuDeviceGetCount=lambda _: 0)).alone
