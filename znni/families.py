"""Families of primitives, for comparing what a network could be computed with."""

from __future__ import annotations

from znni.primitive import Catalogue

# How the names of each family's primitives begin, after the gpu_ of those that compute on GPUs.
FAMILIES: dict[str, tuple[str, ...]] = {
    "tiled FFT": ("fft_tiled",),
    "FFT of whole images": ("fft_data_parallel", "fft_task_parallel", "fft_pruned"),
    "lowered to matrix products": ("lowered",),
    "direct": ("direct",),
    "cuDNN": ("cudnn",),
}


def families(primitives: Catalogue) -> dict[str, set[str]]:
    """Of each family that has any, the names of its primitives, and of all for pooling."""
    own = {
        family: {name for name in primitives if name.rpartition("gpu_")[2].startswith(beginnings)}
        for family, beginnings in FAMILIES.items()
    }
    pooling = set(primitives).difference(*own.values())
    return {family: names | pooling for family, names in own.items() if names}
