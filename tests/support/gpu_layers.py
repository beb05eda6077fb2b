"""Common parts of the tests of GPU primitives: a described GPU that need not exist."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from znni.machine.machine import Device

# An H200 as in its data sheet; costs need no more.
DEVICE = Device("gpu", "NVIDIA H200", 141 * 10**9, 1, flops=66.9e12, bandwidth=4.8e12)
H200 = replace(DEVICE, capability=90)

needs_compiler = pytest.mark.skipif(
    find_spec("cupy") is None, reason="needs CuPy, which is for Linux on x86-64"
)
