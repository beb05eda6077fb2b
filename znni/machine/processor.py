"""The host's processor: its name, its instruction sets, and the nominal speed of a core."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

INFO = Path("/proc/cpuinfo")

# Float32 operations of a core in a cycle, by SIMD width: two fused multiply-adds.
FLOPS_PER_CYCLE = {"avx512f": 64, "avx2": 32, "neon": 16}
BASELINE_FLOPS_PER_CYCLE = 8
NOMINAL_HERTZ = 2.5e9

# Vectors of bfloat16 pairs that a core multiplies in a cycle (VDPBF16PS). Intel's Xeons multiply
# two float32 vectors in a cycle, but one of these every other cycle, as measured on Emerald Rapids.
# Zen 4 multiplies one in a cycle.
PAIRS_PER_CYCLE = 1.0
PAIRS_PER_CYCLE_OF_INTEL = 0.5


def processor_name() -> str:
    """Return the processor's name, that of Linux or of LLVM, such as ``aarch64 neoverse-v1``."""
    return _cpuinfo("model name") or f"{platform.machine()} {get_host_cpu_name()}"


def processor_features() -> Mapping[str, bool]:
    """Return whether the processor has each instruction set, by LLVM's names."""
    return dict(get_host_cpu_features())


def nominal_flops(features: Mapping[str, bool]) -> float:
    """Return float32 operations of a core in a second, until measured costs replace them."""
    found = (rate for name, rate in FLOPS_PER_CYCLE.items() if features.get(name))
    return next(found, BASELINE_FLOPS_PER_CYCLE) * NOMINAL_HERTZ


def pairs_per_cycle() -> float:
    """Return the vectors of bfloat16 pairs that a core multiplies in a cycle, if it can."""
    maker = _cpuinfo("vendor_id") or platform.processor()
    return PAIRS_PER_CYCLE_OF_INTEL if "GenuineIntel" in maker else PAIRS_PER_CYCLE


def _cpuinfo(key: str) -> str:
    """Return what Linux says of the first core under a key, or an empty string."""
    with suppress(OSError), INFO.open() as lines:
        for line in lines:
            found, colon, value = line.partition(":")
            if found.strip() == key:
                return value.strip()
            if not colon:  # what follows is of other cores
                break
    return ""
