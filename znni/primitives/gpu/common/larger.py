"""The larger of two numbers, in CUDA: what pooling and the activations keep."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def larger_source() -> str:
    """The CUDA function ``float larger(float, float)``, which keeps NaN."""
    return (files(__package__) / "larger.cuh").read_text()
