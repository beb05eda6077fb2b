"""What tests share: folders, a small case and machine, no measured costs, no GPU without one."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from zlib import crc32

import pytest
from blas_threads import three_blas_threads
from command_line import INFER, LONG_VOLUME, succeeds, voxels, write_case, write_volume
from emulation.kernels_on_host import folder
from fakes import fake_catalogue
from hypothesis import settings

from planner.cost_model import BUILT_IN
from znni.calibration import compiled_notes, phase_notes
from znni.calibration.cost_file import VARIABLE
from znni.calibration.database import CostDatabase
from znni.calibration.measure import Workbench
from znni.calibration.shapes import Call
from znni.core.logged import log_of_waits, warn_once
from znni.inference import text_cache
from znni.machine import busy, cold_pages
from znni.machine.cuda import cupy
from znni.machine.detect import detect_machine
from znni.machine.machine import Machine
from znni.machine.timing import Timing
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Weights, load_weights
from znni.plans.primitive import Primitive

# The same examples on every run: a failure on one machine is a failure on the next. Few of them, so
# that all tests take minutes.
settings.register_profile("reproducible", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("reproducible")

# Tests interrupt themselves; a shell starts what runs in its background with that ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # not on Windows
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has ignored

# Workers of pytest-xdist inherit it, and compile each emulated kernel once together.
folder()

GPU_LOCK = Path(tempfile.gettempdir()) / "znni-tests-of-the-gpu"
NO_NOTES = mock.Mock(load=lambda _: None)


@pytest.fixture(scope="session", autouse=True)
def no_measured_costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans do not depend on what was measured, planned, kept or touched on this machine before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("costs") / "costs.sqlite"))
        patch.setenv(text_cache.FOLDER_VARIABLE, str(tmp_path_factory.mktemp("plans")))
        patch.setattr(cold_pages, "PROCESSORS", Path("/no/such/file"))  # of no virtual machine
        patch.setattr(phase_notes, "NOTES", NO_NOTES)  # tests start long before their runs
        patch.setattr(busy, "LOADS", Path("/no/such/file"))  # whatever runs beside tests
        patch.setattr(compiled_notes, "STEP_SECONDS", 0.0)  # whatever was compiled here before
        yield


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_collect() -> None:
    """Look for garbage only among what a module's tests make, not among all imported before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_as_in_a_new_process() -> Iterator[None]:
    """Warnings that a process logs once come in each test; waits only after a command's wish."""
    warn_once.cache_clear()
    levels = {log: log.level for log in (logging.getLogger("znni"), log_of_waits)}
    yield
    for log, level in levels.items():
        log.setLevel(level)


@pytest.fixture(autouse=True)
def share_of_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests share the GPU among processes. One that measures or takes all memory has it alone."""
    if not request.node.get_closest_marker("gpu") or not detect_machine().gpus:
        yield
        return
    from fcntl import LOCK_EX, LOCK_SH, flock  # Windows has none, and skips these tests

    alone = request.node.get_closest_marker("whole_gpu")
    with GPU_LOCK.open("a") as lock:
        flock(lock, LOCK_EX if alone else LOCK_SH)
        yield
        if "cupy" in sys.modules:
            cupy().get_default_memory_pool().free_all_blocks()


@pytest.fixture(scope="session")
def machine() -> Machine:
    """This machine, held to two threads and 4 GiB."""
    return detect_machine(ram=4 << 30, threads=2)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, in which it runs: paths may be relative to it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_case(own_folder: Path) -> Path:
    """The test's own folder, with ``tiny.yaml``, its weights and ``volume.h5``."""
    write_case(own_folder)
    return own_folder


@pytest.fixture
def long_case(small_case: Path) -> Path:
    """The small case with a volume of ``LONG_VOLUME``, of many blocks where memory is short."""
    write_volume(voxels(LONG_VOLUME))
    return small_case


@pytest.fixture
def network(small_case: Path) -> Network:
    """That of the small case."""
    return load_network(small_case / "tiny.yaml")


@pytest.fixture
def weights(small_case: Path, network: Network) -> Weights:
    """Those of the small case."""
    return load_weights(small_case / "tiny.npz", network)


@pytest.fixture
def fake_primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans choose among primitives that cost no time to plan for, and give the reference."""
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: fake_catalogue())


@pytest.fixture
def small_output(small_case: Path) -> Path:
    """``out.h5``, of the small case, from voxel (0, 2, 3) of its input on."""
    succeeds(*INFER)
    return small_case / "out.h5"


@pytest.fixture
def several_blas_threads() -> Iterator[None]:
    """BLAS has three threads, of which code that wants one must take two away."""
    with three_blas_threads():
        yield


@pytest.fixture
def nothing_partial(own_folder: Path) -> Iterator[None]:
    """The test leaves no unfinished output."""
    yield
    assert not list(own_folder.glob("*.partial"))


@pytest.fixture
def memory_files() -> Iterator[None]:
    """Files that the test writes to ``memory://`` are gone after it."""
    from fsspec.implementations.memory import MemoryFileSystem

    yield
    MemoryFileSystem.store.clear()


@pytest.fixture
def database(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> CostDatabase:
    """Measured costs, none yet: the default for all that plan."""
    monkeypatch.setenv(VARIABLE, str(own_folder / "costs.sqlite"))
    return CostDatabase()


@pytest.fixture
def twice_as_slow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Call]]:
    """Measurements that only pretend to run, and give twice what the built-in model predicts.

    Their clock goes at its own pace, so that a campaign's time is not up on a busy machine.

    Returns:
        What was measured so far.
    """
    measured: list[tuple[str, Call]] = []

    def pretend(_: Workbench, primitive: Primitive, call: Call, repeats: int) -> Timing:
        measured.append((primitive.name, call))
        predicted = BUILT_IN.estimate(primitive, *call, primitive.cost(*call))
        return Timing((2 * predicted.seconds,) * repeats)

    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: 1e-3 * next(ticks))
    monkeypatch.setattr("znni.calibration.campaign.time", clock)
    monkeypatch.setattr(Workbench, "measure", pretend)
    return measured


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are imported: there is little, among a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", default="0/1", metavar="K/N", help="run share K of N of the slow tests, from 0"
    )
    parser.addoption(
        "--passed", type=Path, metavar="FILE", help="leave out tests in FILE; add those that pass"
    )


class PassedTests:
    """Add the names of tests that pass to a file."""

    def __init__(self, file: Path) -> None:
        self._file, self._called = file, set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when == "call":
            self._called.add(report.nodeid)
        elif report.passed and report.when == "teardown" and report.nodeid in self._called:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--passed")
    if file and not hasattr(config, "workerinput"):  # workers send their reports
        config.pluginmanager.register(PassedTests(file))


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen = set[str]()
    for item in items:
        # GPU tests are few and fast where there is a GPU: all of their cases are run.
        if item.get_closest_marker("slow_cases") and not item.get_closest_marker("gpu"):
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker("slow")
            seen.add(test)
    share, shares = map(int, config.getoption("--share").split("/"))
    file = config.getoption("--passed")
    passed = set(file.read_text().splitlines()) if file and file.exists() else set()
    left = [
        item
        for item in items
        if item.nodeid in passed
        or (item.get_closest_marker("slow") and crc32(item.nodeid.encode()) % shares != share)
    ]
    config.hook.pytest_deselected(items=left)
    leaving = set(left)
    items[:] = [item for item in items if item not in leaving]
    if detect_machine().gpus:
        return
    without_gpu = pytest.mark.skip(reason="needs an NVIDIA GPU, and there is none here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(without_gpu)
