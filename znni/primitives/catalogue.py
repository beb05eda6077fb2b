"""The catalogue: all primitives there are, found by being files, and their families.

A module in ``cpu``, ``gpu`` or ``host_and_gpu``, or the module ``primitive`` of a package there,
adds what its function ``primitives(device)`` returns. Those of ``host_and_gpu`` are given both
devices and the GPU's own primitives: ``primitives(host, gpu, on_gpu)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from znni.core.members import members
from znni.machine.machine import Device, Machine, Processors
from znni.plans.primitive import Catalogue, Primitive

# How the names of each family's primitives begin, after the gpu_ of those that compute on GPUs.
FAMILIES: dict[str, tuple[str, ...]] = {
    "tiled FFT": ("fft_tiled",),
    "FFT of whole images": ("fft_data_parallel", "fft_task_parallel", "fft_pruned"),
    "lowered to matrix products": ("lowered",),
    "direct": ("direct",),
    "cuDNN": ("cudnn",),
}


def catalogue(machine: Machine, processors: Processors = "cpu+gpu") -> dict[str, Primitive]:
    """All primitives that the machine's devices can run, by name; of its GPUs, the first.

    Those of the host that use a GPU do so by the GPU's own.

    Args:
        machine: whose.
        processors: what computes; others' primitives are not loaded.
    """
    found: dict[str, Primitive] = {}
    if processors != "gpu":
        found |= _by_name(_primitives_of("cpu", machine.host))
    for gpu in machine.gpus[:1] if processors != "cpu" else ():
        on_gpu = _by_name(_primitives_of("gpu", gpu))
        found |= on_gpu
        if processors == "cpu+gpu":
            found |= _by_name(_primitives_of("host_and_gpu", machine.host, gpu, on_gpu))
    return found


def families(primitives: Catalogue) -> dict[str, set[str]]:
    """Of each family that has any, the names of its primitives, and of all for pooling."""
    own = {
        family: {name for name in primitives if name.rpartition("gpu_")[2].startswith(beginnings)}
        for family, beginnings in FAMILIES.items()
    }
    pooling = set(primitives).difference(*own.values())
    return {family: names | pooling for family, names in own.items() if names}


def _by_name(primitives: Iterable[Primitive]) -> dict[str, Primitive]:
    found: dict[str, Primitive] = {}
    for primitive in primitives:
        if primitive.name in found:
            raise RuntimeError(f"two primitives are named {primitive.name!r}")
        found[primitive.name] = primitive
    return found


def _primitives_of(kind: str, *devices: Device | Catalogue) -> Iterator[Primitive]:
    for module in members(import_module(f"znni.primitives.{kind}"), "primitive"):
        if hasattr(module, "primitives"):
            yield from module.primitives(*devices)
