"""The CUDA C++ beside this module."""

from __future__ import annotations

from znni.machine.cuda_kernels import source_beside


def cuda_text(name: str) -> str:
    """A file's text."""
    return source_beside(__file__, name)
