"""The host's processor: its name, its instruction sets, and the nominal speed of a core."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from znni.core.value_cache import ValueCache

INFO = Path("/proc/cpuinfo")

# The keys of Linux's description of a core that decide on its instruction sets, on x86 and on ARM.
SETS = ("flags", "Features")
TOLD = (
    "vendor_id", "cpu family", "model", "stepping", "microcode",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", *SETS,
)  # fmt: skip

# Float32 operations of a core in a cycle, by SIMD width: two fused multiply-adds.
FLOPS_PER_CYCLE = {"avx512f": 64, "avx2": 32, "neon": 16}
BASELINE_FLOPS_PER_CYCLE = 8
NOMINAL_HERTZ = 2.5e9

# Vectors of bfloat16 pairs that a core multiplies in a cycle (VDPBF16PS). Intel's Xeons multiply
# two float32 vectors in a cycle, but one of these every other cycle, as measured on Emerald Rapids.
# Zen 4 multiplies one in a cycle.
PAIRS_PER_CYCLE = 1.0
PAIRS_PER_CYCLE_OF_INTEL = 0.5

# Instruction sets, by a processor's description.
FEATURES = ValueCache[dict[str, bool]]("processors", 1, dict)


def processor_name() -> str:
    """Return the processor's name as the system gives it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def processor_features() -> Mapping[str, bool]:
    """Return whether the processor has each instruction set, by LLVM's names.

    They are in the user's cache, because LLVM takes some hundredths of a second to load.
    """
    about = _about()
    if about and (known := FEATURES.load(about)):
        return known
    import llvmlite.binding

    features = dict(llvmlite.binding.get_host_cpu_features())
    if about:
        FEATURES.store(about, features)
    return features


def _about() -> str | None:
    """Return text about such a processor and LLVM; None if the system does not tell enough."""
    core = _first_core()
    llvm = find_spec("llvmlite")
    if llvm is None or llvm.origin is None or not any(core.get(key) for key in SETS):
        return None
    told = [core.get(key) for key in TOLD]
    return f"{told} {llvm.origin} {Path(llvm.origin).stat().st_mtime_ns}"


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
    return _first_core().get(key, "")


def _first_core() -> Mapping[str, str]:
    """Return all that Linux says of the first core."""
    found: dict[str, str] = {}
    try:
        with INFO.open() as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if not value:
                    break
                found[key.strip()] = value.strip()
    except OSError:
        pass
    return found
