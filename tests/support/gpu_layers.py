"""Common parts of the tests of GPU primitives: a described GPU that need not exist."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from kernel_resources import resource_usage

from znni.machine.cuda import cupy
from znni.machine.machine import Device
from znni.network.layers import Activation
from znni.primitives.gpu.common.hardware import CHIPS, COMPILED, REGISTERS
from znni.primitives.gpu.direct_tensor.geometry import ThreadBlock
from znni.primitives.gpu.direct_tensor.launch import convolution_source
from znni.primitives.gpu.direct_tensor.work import UNPACKED, Packing

# An H200 as in its data sheet; costs need no more.
DEVICE = Device("gpu", "NVIDIA H200", 141 * 10**9, 1, flops=66.9e12, bandwidth=4.8e12)
H200 = replace(DEVICE, capability=90)

# The same GPU as if it were of another capability: kernels for Ampere run on any later GPU.
AS_AMPERE = replace(DEVICE, capability=80)
AS_ADA = replace(DEVICE, capability=89)

chips = pytest.mark.parametrize(
    "chip", [CHIPS[number] for number in COMPILED], ids=lambda chip: chip.architecture
)
devices = pytest.mark.parametrize(
    "device", [H200, AS_AMPERE, AS_ADA], ids=lambda device: f"capability{device.capability}"
)

needs_compiler = pytest.mark.skipif(
    find_spec("cupy") is None, reason="needs CuPy, which is for Linux on x86-64"
)

# The first NVRTC that keeps in registers what the tests expect there. PyTorch for CUDA 13.0 brings
# an older one. With it, a few kernels spill some words a thread. Their machine code (of NVRTC
# 13.0.88) stores and reads them once a tile or a stage, and never inside a loop of products.
KEEPS_REGISTERS = (13, 2)


def most_spills(usual: int, older: int) -> int:
    """Return the bytes that a thread of a kernel may spill, which are more for an older NVRTC."""
    return usual if cupy().cuda.nvrtc.getVersion() >= KEEPS_REGISTERS else older


def assert_fits(
    block: ThreadBlock, activation: Activation = "relu", packing: Packing = UNPACKED
) -> None:
    """Check that a direct convolution's kernel fits its chip, and spills no registers."""
    source = convolution_source(block, activation, packing=packing)
    usage = resource_usage(source, block.chip.architecture)["convolve"]
    assert usage.spills == 0
    assert usage.registers * block.threads <= REGISTERS
    assert usage.shared + block.shared_bytes <= block.chip.block_shared_bytes
