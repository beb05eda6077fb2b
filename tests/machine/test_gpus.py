"""GPUs are found quickly, and what is known of them is what CUDA found."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from znni.machine.gpus import start_driver


class FakeDriver:
    """A driver with some GPUs, which notes what is called."""

    def __init__(self, count: int, fails: str = "") -> None:
        self.count, self.fails = count, fails
        self.called: list[tuple[str, int]] = []

    def _note(self, name: str, number: int) -> int:
        self.called.append((name, number))
        return 100 if name == self.fails else 0

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's names
        return self._note("init", flags)

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return self._note("count", self.count)

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = 10 + number
        return self._note("device", number)

    def cuDevicePrimaryCtxRetain(self, _context: Any, device: ctypes.c_int) -> int:  # noqa: N802
        return self._note("context", device.value)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_driver_starts_a_context_on_each_gpu(count: int) -> None:
    driver = FakeDriver(count)
    start_driver(driver)
    contexts = {number for name, number in driver.called if name == "context"}
    assert contexts == {10 + number for number in range(count)}


@pytest.mark.parametrize("fails", ["init", "count", "device"])
def test_a_driver_that_fails_is_left_to_cupy(fails: str) -> None:
    driver = FakeDriver(2, fails)
    start_driver(driver)
    assert not any(name == "context" for name, _ in driver.called)


def test_without_a_driver_nothing_starts() -> None:
    start_driver(None)
