"""A plugin of pytest that pretends another processor: ``pytest -p other_processor``.

Plans and calls to measure depend on the processor; the result of a test must not. The code that is
compiled stays that of this processor.
"""

from __future__ import annotations

import os

from znni.machine import detect

AVX2, AMD, ARM = "avx2", "amd", "arm"
FEATURES = {
    AVX2: {"avx2": True, "fma": True, "f16c": True},
    AMD: {"avx2": True, "fma": True, "f16c": True, "avx512f": True, "avx512bf16": True},
    ARM: {"neon": True},
}
kind = os.environ.get("OTHER_PROCESSOR", AVX2)

detect.processor_features = lambda: FEATURES[kind]
detect.pairs_per_cycle = lambda: 1.0
