"""What a GPU gives when a primitive is first used, beside what the primitive declares.

Code of kernels, what they spill to, and what CUDA's libraries take for themselves when they are
first called, once in a process: plans count it among ``DEVICE_BYTES``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

from bench.gpu_exercise import exercise, recombined
from bench.record import Row
from znni.machine.cuda import cupy
from znni.plans.primitive import Primitive


def kept_beside(primitives: Iterable[Primitive]) -> Iterator[Row]:
    """Bytes that each primitive's first calls cost the GPU for good, in the order given.

    Args:
        primitives: for GPUs.
    """
    recombined()  # and with it what CUDA takes to begin
    begun = _free()
    for primitive in primitives:
        before = _free()
        exercise([primitive], poison=False)
        after = _free()
        yield {
            "name": primitive.name,
            "kept_mib": (before - after) / 2**20,
            "so_far_mib": (begun - after) / 2**20,
        }


def _free() -> int:
    """Bytes that nobody has taken, once all that is no longer in use is given back."""
    gc.collect()
    cupy().get_default_memory_pool().free_all_blocks()
    return int(cupy().cuda.Device().mem_info[0])
