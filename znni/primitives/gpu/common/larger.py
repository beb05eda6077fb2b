"""The larger of two numbers, in CUDA: what pooling and the activations keep."""

from __future__ import annotations

from znni.machine.cuda_kernels import source_beside


def larger_source() -> str:
    """The CUDA function ``float larger(float, float)``, which keeps NaN."""
    return source_beside(__file__, "larger.cuh")
