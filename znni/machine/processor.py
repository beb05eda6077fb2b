"""The processor that this runs on: what it is called, and what a core of it does."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

INFO = Path("/proc/cpuinfo")

# Float32 operations of a core in a cycle by SIMD width: two fused multiply-adds.
FLOPS_PER_CYCLE = {"avx512f": 64, "avx2": 32, "neon": 16}
BASELINE_FLOPS_PER_CYCLE = 8
NOMINAL_HERTZ = 2.5e9

# Vectors of pairs of bfloat16 that a core multiplies in a cycle (VDPBF16PS): Intel's Xeons, which
# multiply two of float32, have one every other cycle, as measured on Emerald Rapids; Zen 4 has one.
PAIRS_PER_CYCLE = 1.0
PAIRS_PER_CYCLE_OF_INTEL = 0.5


def processor_name() -> str:
    """As the system tells it."""
    return _told("model name") or platform.processor() or platform.machine()


def processor_features() -> Mapping[str, bool]:
    """Instruction sets by LLVM's names, and whether the processor has them."""
    import llvmlite.binding

    features: Mapping[str, bool] = llvmlite.binding.get_host_cpu_features()
    return features


def nominal_flops(features: Mapping[str, bool]) -> float:
    """Float32 operations of a core in a second, until measured costs replace them."""
    found = (rate for name, rate in FLOPS_PER_CYCLE.items() if features.get(name))
    return next(found, BASELINE_FLOPS_PER_CYCLE) * NOMINAL_HERTZ


def pairs_per_cycle() -> float:
    """Vectors of pairs of bfloat16 that a core multiplies in a cycle, if it does at all."""
    maker = _told("vendor_id") or platform.processor()
    return PAIRS_PER_CYCLE_OF_INTEL if "GenuineIntel" in maker else PAIRS_PER_CYCLE


def _told(key: str) -> str:
    """What Linux tells of the first core under a key; empty where it tells nothing."""
    try:
        lines = INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
