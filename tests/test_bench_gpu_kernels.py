"""``python -m bench gpu-kernels``: what is made of what the profiler counts."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from bench import gpu_kernels
from bench.gpu_ceilings import GpuCeilings
from bench.gpu_kernels import CALLS, MARK, METRICS, Counted, compare_kernels, counted_calls
from znni.errors import InvalidInput, RunFailed
from znni.machine import Device, Machine, detect_host
from znni.primitive import catalogue

TITLES = ["ID", "Kernel Name", *METRICS]
UNITS = ["", "", "ns", "byte", "byte", "inst", "inst", "inst", "%"]
H200 = Device("gpu", "NVIDIA H200", 2**37, 1, flops=7e13, bandwidth=4e12, capability=90, cudnn=True)


def launch(kernel: str, *numbers: float) -> list[str]:
    return ["0", kernel, *(f"{number:,}" for number in numbers)]


def test_launches_of_a_kernel_in_a_call_are_added_up() -> None:
    lines = [
        TITLES,
        UNITS,
        launch(f"{MARK}()", 1, 0, 0, 0, 0, 0, 1),
        launch("place(float *)", 3000.0, 4096, 10, 1, 2, 3, 80),
        launch("other(int)", 5, 0, 0, 0, 0, 0, 1),
        launch("place(float *)", 1000.0, 1, 2, 10, 20, 30, 40),
        launch(f"{MARK}()", 1, 0, 0, 0, 0, 0, 1),
        launch("place(float *)", 2e6, 0, 0, 0, 0, 0, 10),
    ]
    first, second = counted_calls(lines)
    assert first[0] == Counted("place", 2, pytest.approx(4e-6), 4097, 12, 99, pytest.approx(0.7))
    assert [kernel.kernel for kernel in first] == ["place", "other"]
    assert second == [Counted("place", 1, pytest.approx(2e-3), 0, 0, 0, pytest.approx(0.1))]


def test_kernels_are_held_to_the_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [("gpu_direct", *CALLS[4][1:]), ("gpu_max_pooling", *CALLS[7][1:])]
    monkeypatch.setattr(gpu_kernels, "calls_here", lambda _: calls)
    counted = [
        [Counted("convolve", 1, 2e-3, 1e9, 1e9, 1e8, 0.5)],
        [Counted("pool", 2, 1, 0, 0, 0, 1)],
    ]
    monkeypatch.setattr(gpu_kernels, "_profiled", lambda: counted)
    direct, pool = compare_kernels(GpuCeilings("a GPU", 1e12, 2e12))
    assert (direct["layer"], pool["layer"]) == ("1->80 3x3x3", "pool 2x2x2")
    assert direct["bound"] == "bytes"
    assert direct["floor_milliseconds"] == pytest.approx(1)
    assert direct["achieved"] == pytest.approx(0.5)


def test_every_call_is_one_that_its_primitive_does() -> None:
    known = catalogue(Machine(detect_host().host, (H200,)))
    assert {name for name, *_ in CALLS} <= known.keys()
    for name, operation, shape in CALLS:
        assert known[name].out_shape(operation, shape)
        assert known[name].cost(operation, shape).memory.working < 12 * 2**30


def test_without_the_profiler_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "which", lambda _: None)
    with pytest.raises(InvalidInput, match="ncu, of the CUDA toolkit"):
        gpu_kernels._profiled()


def test_what_the_profiler_says_of_a_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(returncode=1, stderr="ERR_NVGPUCTRPERM")

    monkeypatch.setattr(gpu_kernels, "which", lambda _: "ncu")
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(RunFailed, match="ncu failed: ERR_NVGPUCTRPERM"):
        gpu_kernels._profiled()
