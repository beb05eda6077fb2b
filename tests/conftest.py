"""What all tests share: a small machine, examples, no measured costs, no GPU tests without one."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from znni.calibration.database import VARIABLE
from znni.machine import Machine, detect_machine

# The same examples on every run: a failure on one machine is a failure on the next.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")

# Tests interrupt themselves; a shell starts what runs in its background with that ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has ignored


@pytest.fixture(scope="session", autouse=True)
def no_measured_costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans do not depend on what was measured on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("costs") / "costs.sqlite"))
        yield


@pytest.fixture(scope="session")
def machine() -> Machine:
    """This machine, held to two threads and 4 GiB."""
    return detect_machine(ram=4 << 30, threads=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if detect_machine().gpus:
        return
    without_gpu = pytest.mark.skip(reason="needs an NVIDIA GPU, and there is none here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(without_gpu)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later search for garbage."""
    gc.collect()
    gc.freeze()
