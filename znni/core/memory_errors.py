"""Errors about memory: no plan fits, a step of a case does not, a GPU has too little left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

from znni.core.errors import RunFailed, ZnniError, option
from znni.core.processors import HOST, DeviceKind, has_own_memory
from znni.core.text import in_units


@dataclass(kw_only=True, eq=False, repr=False)
class DoesNotFit(ZnniError):
    """No plan stays within the memory allowed.

    Attributes:
        needed: bytes that the smallest plan tried would take.
        allowed: bytes allowed on that device.
        device: the device that is too small, ``cpu`` or ``gpu``.
        layer: the layer at which the smallest plan peaks.
        patch: the smallest patch tried, in output voxels per axis.
        remedy: what to give; empty: the option of this device's memory.
        sensible: about the least bytes with which a run is half as fast as it can be; 0: unknown.
        without_gpu: bytes of the host that suffice if no layer may use a GPU; 0: unknown, or more
            than are allowed.
        process: bytes of the host, among the needed ones, for the process and its libraries; 0:
            unknown, or the GPU is too small.
        gpu_libraries: bytes of these for the libraries of a GPU.
        along: the axis along which the smallest plan sweeps the volume; empty: it does not.
    """

    exit_code = 3

    needed: int
    allowed: int
    device: DeviceKind
    layer: str
    patch: tuple[int, int, int]
    remedy: str = ""
    sensible: int = 0
    without_gpu: int = 0
    process: int = 0
    gpu_libraries: int = 0
    along: str = ""

    def __post_init__(self) -> None:
        size = f"{'x'.join(map(str, self.patch))} output voxels"
        if self.along:
            size += f", in a sweep along {self.along}"
        needed, limit = self.needed, "gpu_memory" if has_own_memory(self.device) else "ram"
        remedy = self.remedy or option(limit, f"{ceil(needed / 2**20)}MiB")
        more = "or more"
        if self.sensible > needed:
            more = f"at least, or {ceil(self.sensible / 2**20)}MiB for half of the best speed"
        if self.without_gpu:
            more += f", or {option('device', HOST)}, which needs {in_units(self.without_gpu)}"
        beside = ""
        if self.process:
            libraries = in_units(self.gpu_libraries)
            of_gpu = f", those of the GPU {libraries}" if self.gpu_libraries else ""
            taken = in_units(self.process)
            beside = f" (the process and its libraries take {taken} of it{of_gpu})"
        super().__init__(
            f"no plan fits: the smallest patch tried ({size}) needs "
            f"{in_units(needed)} on the {self.device}, at layer {self.layer}{beside}, and "
            f"{in_units(self.allowed)} are allowed; give {remedy} {more}, or use a smaller network"
        )

    def beside(self, nbytes: int) -> DoesNotFit:
        """Return the error for a process that is allowed some bytes more, and takes them too."""
        if has_own_memory(self.device) or self.remedy:
            return self
        known = {name: getattr(self, name) for name in ("sensible", "without_gpu")}
        more = {name: size + nbytes for name, size in known.items() if size}
        return replace(self, needed=self.needed + nbytes, allowed=self.allowed + nbytes, **more)


@dataclass(eq=False, repr=False)
class StepDoesNotFit(ZnniError):
    """A step of a whole case does not stay within the memory allowed.

    Attributes:
        step: what needs the memory.
        needed: bytes that the process would take at least.
        allowed: bytes that it may take.
        process: bytes, among the needed ones, for its libraries, the weights and other work.
    """

    exit_code = 3

    step: str
    needed: int = field(kw_only=True)
    allowed: int = field(kw_only=True)
    process: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__init__(
            f"a case does not fit: {self.step} needs {in_units(self.needed)} (the process, the "
            f"weights and other work take {in_units(self.process)} of it), and "
            f"{in_units(self.allowed)} are allowed; give "
            f"{option('ram', f'{ceil(self.needed / 2**20)}MiB')} or more"
        )

    def beside(self, nbytes: int) -> StepDoesNotFit:
        """Return the error for a process that is allowed some bytes more, and takes them too."""
        needed, allowed = self.needed + nbytes, self.allowed + nbytes
        return replace(self, needed=needed, allowed=allowed, process=self.process + nbytes)


class OutOfDeviceMemory(RunFailed, MemoryError):
    """A GPU that has less memory left than a run needs."""
