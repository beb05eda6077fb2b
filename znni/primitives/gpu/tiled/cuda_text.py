"""The CUDA C++ beside this module, and sizes for it."""

from __future__ import annotations

from collections.abc import Mapping

from znni.cuda import source_beside


def cuda_text(name: str) -> str:
    """A file's text."""
    return source_beside(__file__, name)


def definitions(values: Mapping[str, int]) -> str:
    """Macros of those names."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())
