"""The CUDA C++ beside this module, and sizes for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def cuda_text(name: str) -> str:
    """A file's text."""
    return (files(__package__) / name).read_text()


def definitions(values: Mapping[str, int]) -> str:
    """Macros of those names."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())
