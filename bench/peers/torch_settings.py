"""The settings that suit PyTorch, on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

NOT_INSTALLED = "PyTorch is not installed: pip install -e '.[peers]'"

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

# Classes of accuracy, and PyTorch's types for them. A CPU has the first and the last.
TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
CPU_KINDS = ("fp32", "bf16")

# Autotuning tries so many of cuDNN's engines, in the order in which cuDNN proposes them. Some late
# ones take seconds when the best takes milliseconds.
PROPOSALS = 10


def has_torch() -> bool:
    """Return True if PyTorch is installed; it comes with the optional extra ``peers``."""
    return find_spec("torch") is not None


@contextmanager
def autotuned(*, tf32: bool, proposals: int = PROPOSALS) -> Iterator[None]:
    """Let cuDNN be autotuned among so many engines within a ``with`` block."""
    import torch

    with torch.backends.cudnn.flags(
        enabled=True, benchmark=True, benchmark_limit=proposals, allow_tf32=tf32
    ):
        yield


def gpu_peak_bytes(work: Callable[[], object]) -> int:
    """Run some work, and return the most GPU bytes that PyTorch held, inputs included."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def free_torch_memory() -> None:
    """Return the GPU memory that PyTorch keeps for later."""
    import torch

    torch.cuda.empty_cache()
