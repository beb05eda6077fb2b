"""CUDA sources compile without a device, and the compiler reports what each kernel takes."""

from __future__ import annotations

import pytest
from gpu_layers import needs_compiler
from kernel_resources import KERNELS, ResourceUsage, parsed_usage, resource_usage

from znni.machine.nvrtc import compile_offline


@needs_compiler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_a_kernel_compiles_without_a_device(architecture: str) -> None:
    code = compile_offline(KERNELS, architecture, ("-DWIDTH=64",))
    assert code[:4] == b"\x7fELF"


@needs_compiler
def test_resources_are_told_of_each_kernel() -> None:
    usage = resource_usage(KERNELS, options=("-DWIDTH=64",))
    assert set(usage) == {"doubled", "reversed"}
    assert usage["reversed"].shared == 128
    assert all(0 < kernel.registers <= 32 and not kernel.spills for kernel in usage.values())


@needs_compiler
def test_code_that_the_compiler_keeps_is_reported_again() -> None:
    reports = [resource_usage(KERNELS, options=("-DWIDTH=32",)) for _ in range(2)]
    assert reports[0] == reports[1]


def test_a_report_without_kernels_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="names no kernel: 'info : 9 bytes gmem'"):
        parsed_usage("info : 9 bytes gmem\n")


@needs_compiler
def test_a_mistake_is_shown_with_its_line() -> None:
    with pytest.raises(RuntimeError, match=r"kernels\.cu\(1\).*identifier \"y\" is undefined"):
        compile_offline('extern "C" __global__ void f(float* x) { x[0] = y; }')


def test_spills_are_stores_and_loads() -> None:
    report = """
ptxas info    : Compiling entry function 'hot' for 'sm_90a'
ptxas info    : Function properties for hot
    88 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 88 bytes cumulative stack size, 640 bytes smem
"""
    assert parsed_usage(report) == {"hot": ResourceUsage(registers=255, spills=32, shared=640)}
