"""The registry of backends. Each runs layers on the devices that name it.

A backend is a folder beside this module. Its module ``device`` has the value ``BACKEND``. Installed
packages bring other backends, by entry points of the group ``znni.backends``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from znni.core.discovery import member, subpackages
from znni.core.errors import InvalidInput
from znni.core.option_types import OutputType
from znni.core.packages import BACKENDS, offers
from znni.core.shapes import Shape5
from znni.engine.block import ComputeStage
from znni.engine.executor import Measured
from znni.engine.labels import Labels
from znni.engine.stage_chain import nothing_to_do
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Allocate, allocate_new
from znni.machine.machine import Device
from znni.network.weights import ConvWeights, Float32, Weights
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue


class PartToRun(NamedTuple):
    """A part of a plan, with everything that makes its layers ready.

    Attributes:
        catalogue: the primitives that it names.
        weights: the weights of the plan's network.
        measured: the function that takes the seconds of each step, as soon as they are known.
        dtype: the type of the output, if the backend converts it. Other backends give float32.
        head: the weights of the last layer, if it is applied to the blended values of windows.
    """

    plan: Plan
    part: DevicePart
    catalogue: Catalogue
    weights: Weights
    measured: Measured
    dtype: OutputType = "float32"
    head: ConvWeights | None = None


class PartRunner(Protocol):
    """A runner of one part of a plan, with everything prepared that can be prepared once."""

    def stages(self, stopwatch: Stopwatch, labels: Labels | None = None) -> list[ComputeStage]:
        """Return the stages for the fragments of a patch, or for a block of windows, in order."""


@dataclass(frozen=True)
class DeviceBackend:
    """A backend, as the engine uses it.

    Attributes:
        part_runner: makes a part of a plan ready on the current device.
        devices: returns the devices that are there now, for the backend of an installed package.
            ``machine/detect.py`` finds the devices of znni's own backends.
        allocator: returns the function that allocates arrays for blocks to be read into.
        tensor: makes the array in which layers on the host hand values on to a device. It takes a
            shape and the device's name.
        check: raises ``RunFailed`` if the devices are not the ones that plans were made for.
        free: returns the free bytes of a device now. The memory of this process is not free.
        peak: returns the most bytes that arrays of this process have taken.
        stores: whether it takes integers as they are stored, and gives labels, or output as it is
            stored. If not, layers take and give float32, and the host does the rest.
        several: whether several of its devices may compute, each in a process of its own.
        host_bytes: the bytes of the host that its libraries take in each process.
        device_bytes: the bytes of a device that a run takes beside its arrays.
        start_seconds: the seconds to start a device.
    """

    part_runner: Callable[[PartToRun], PartRunner]
    devices: Callable[[], Sequence[Device]] = tuple
    allocator: Callable[[Plan], Allocate] = lambda _plan: allocate_new
    tensor: Callable[[Shape5, str], Float32] = lambda shape, _name: np.empty(shape, np.float32)
    check: Callable[[], None] = nothing_to_do
    free: Callable[[Device], int] = lambda device: device.memory
    peak: Callable[[], int] = lambda: 0
    stores: bool = False
    several: bool = False
    host_bytes: int = 0
    device_bytes: int = 0
    start_seconds: float = 0.0


def backend_of(device: Device) -> DeviceBackend:
    """Return the backend of a device.

    Raises:
        InvalidInput: no folder and no installed package has a backend of this name.
    """
    return _backend(device.backend_name)


@cache
def _backend(name: str) -> DeviceBackend:
    own = subpackages(__package__)
    if name in own:
        found: DeviceBackend = getattr(member(__package__, name, "device"), "BACKEND")  # noqa: B009
        return found
    others = {offer.entry.name: offer for offer in offers(BACKENDS)}
    if name not in others:
        raise InvalidInput(
            f"there is no backend {name} for devices; the backends are "
            f"{', '.join((*own, *others))}; install the package that brings it"
        )
    brought = others[name].load()
    if not isinstance(brought, DeviceBackend):
        raise others[name].unusable(f"{brought!r} is no DeviceBackend")
    return brought
