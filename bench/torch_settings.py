"""The settings that suit PyTorch on a CPU."""

from __future__ import annotations

from importlib.util import find_spec

# For glibc's malloc, which serves PyTorch's tensors: huge pages, and freed memory kept. Without
# them every large tensor is fetched from the system page by page, each time anew.
ENVIRONMENT = {
    "GLIBC_TUNABLES": ":".join(
        (
            "glibc.malloc.hugetlb=1",
            "glibc.malloc.mmap_max=0",
            f"glibc.malloc.trim_threshold={1 << 40}",
        )
    )
}

# What a measurement of a network's patch may consist of.
WHOLE = "whole patch"
PARTS = "each layer in part"

# PyTorch's memory formats for volumes: which is faster depends on the kernel's extent.
LAYOUTS = ("channels_last_3d", "contiguous_format")

TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def has_torch() -> bool:
    """Whether PyTorch is installed; it comes with the optional extra ``peers``."""
    return find_spec("torch") is not None
