"""Catalogue of all primitives and their families.

Every file of a primitive is found by itself. A module in ``cpu``, ``gpu`` or ``host_and_gpu``, or
the module ``primitive`` of a package there, adds the primitives that its function
``primitives(device)`` returns. In ``host_and_gpu`` this function takes both devices and the GPU's
own primitives: ``primitives(host, gpu, on_gpu)``. A module of GPU primitives that not every GPU has
says in ``NEEDS`` what a GPU needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import NamedTuple

from znni.core.members import members
from znni.machine.machine import Device, Machine, Processors
from znni.plans.primitive import Catalogue, Primitive
from znni.primitives.other_library import primitive as other_library

# Beginnings of the primitives' names in each family, without the prefix gpu_ of GPU primitives.
FAMILIES: dict[str, tuple[str, ...]] = {
    "tiled FFT": ("fft_tiled",),
    "FFT of whole images": ("fft_data_parallel", "fft_task_parallel", "fft_pruned"),
    "Winograd": ("winograd",),
    "lowered to matrix products": ("lowered",),
    "direct": ("direct", "packed_direct"),
    "cuDNN": ("cudnn",),
}


def catalogue(machine: Machine, processors: Processors = "cpu+gpu") -> dict[str, Primitive]:
    """Return all primitives that the machine's devices can run, by name.

    Only the first GPU counts. Host primitives that use a GPU are built on the GPU's own primitives.

    Args:
        machine: the machine.
        processors: the processors that compute; other primitives are not loaded.
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


class GpuOffer(NamedTuple):
    """The primitives of one module that a GPU has, or why it has none.

    Attributes:
        family: such as ``gpu_fft_tiled``.
        names: the primitives that it has.
        needs: what a GPU needs to have them; nothing if every GPU does.
    """

    family: str
    names: tuple[str, ...]
    needs: str


def gpu_offers(gpu: Device) -> list[GpuOffer]:
    """Return what a GPU has of each module of GPU primitives."""
    found = []
    for module in members(import_module("znni.primitives.gpu"), "primitive"):
        if hasattr(module, "primitives"):
            family = f"gpu_{module.__name__.split('.')[-2]}"
            names = tuple(primitive.name for primitive in module.primitives(gpu))
            found.append(GpuOffer(family, names, getattr(module, "NEEDS", "")))
    return found


def other_libraries(machine: Machine) -> dict[str, Primitive]:
    """Return the primitives of networks that have a model in a file, by name."""
    return _by_name(other_library.primitives(machine.host))


def families(primitives: Catalogue) -> dict[str, set[str]]:
    """Return each family's primitives, with all that are no convolutions; skip empty families."""
    own = {
        family: {name for name in primitives if name.rpartition("gpu_")[2].startswith(beginnings)}
        for family, beginnings in FAMILIES.items()
    }
    others = set(primitives).difference(*own.values())
    return {family: names | others for family, names in own.items() if names}


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
