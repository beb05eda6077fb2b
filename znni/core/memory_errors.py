"""Errors about memory: no plan fits, a step of a case does not, a GPU has too little left."""

from __future__ import annotations

from math import ceil

from znni.core.errors import RunFailed, ZnniError, option
from znni.core.processors import HOST, DeviceKind, has_own_memory
from znni.core.text import in_units


class DoesNotFit(ZnniError):
    """No plan stays within the memory allowed.

    Attributes:
        needed: bytes that the smallest plan tried would take.
        allowed: bytes allowed on that device.
        device: the device that is too small, ``cpu`` or ``gpu``.
        layer: the layer at which the smallest plan peaks.
        patch: the smallest patch tried, in output voxels per axis.
        sensible: about the least bytes with which a run is half as fast as it can be; 0: unknown.
        without_gpu: bytes of the host that suffice if no layer may use a GPU; 0: unknown, or more
            than are allowed.
        process: bytes of the host, among the needed ones, for the process and its libraries; 0:
            unknown, or the GPU is too small.
        gpu_libraries: bytes of these for the libraries of a GPU.

    Args:
        remedy: what to give; empty: the option of this device's memory.
    """

    exit_code = 3

    def __init__(
        self, *, needed: int, allowed: int, device: DeviceKind,
        layer: str, patch: tuple[int, int, int],
        remedy: str = "", sensible: int = 0, without_gpu: int = 0,
        process: int = 0, gpu_libraries: int = 0,
    ) -> None:  # fmt: skip
        self.needed = needed
        self.remedy = remedy
        self.sensible = sensible
        self.without_gpu = without_gpu
        self.process = process
        self.gpu_libraries = gpu_libraries
        self.allowed = allowed
        self.device = device
        self.layer = layer
        self.patch = patch
        size = "x".join(map(str, patch))
        limit = "gpu_memory" if has_own_memory(device) else "ram"
        if not remedy:
            remedy = option(limit, f"{ceil(needed / 2**20)}MiB")
        more = "or more"
        if sensible > needed:
            more = f"at least, or {ceil(sensible / 2**20)}MiB for half of the best speed"
        if without_gpu:
            more += f", or {option('device', HOST)}, which needs {in_units(without_gpu)}"
        beside = ""
        if process:
            of_gpu = f", those of the GPU {in_units(gpu_libraries)}" if gpu_libraries else ""
            beside = f" (the process and its libraries take {in_units(process)} of it{of_gpu})"
        super().__init__(
            f"no plan fits: the smallest patch tried ({size} output voxels) needs "
            f"{in_units(needed)} on the {device}, at layer {layer}{beside}, and "
            f"{in_units(allowed)} are allowed; give {remedy} {more}, or use a smaller network"
        )

    def beside(self, nbytes: int) -> DoesNotFit:
        """Return the error for a process that is allowed some bytes more, and takes them too."""
        if has_own_memory(self.device) or self.remedy:
            return self
        return DoesNotFit(
            needed=self.needed + nbytes, allowed=self.allowed + nbytes, device=self.device,
            layer=self.layer, patch=self.patch, sensible=self.sensible and self.sensible + nbytes,
            without_gpu=self.without_gpu and self.without_gpu + nbytes, process=self.process,
            gpu_libraries=self.gpu_libraries,
        )  # fmt: skip


class StepDoesNotFit(ZnniError):
    """A step of a whole case does not stay within the memory allowed.

    Attributes:
        needed: bytes that the process would take at least.
        allowed: bytes that it may take.
        process: bytes, among the needed ones, for its libraries, the weights and other work.
    """

    exit_code = 3

    def __init__(self, step: str, *, needed: int, allowed: int, process: int) -> None:
        self.step, self.needed, self.allowed, self.process = step, needed, allowed, process
        super().__init__(
            f"a case does not fit: {step} needs {in_units(needed)} (the process, the weights and "
            f"other work take {in_units(process)} of it), and {in_units(allowed)} are allowed; "
            f"give {option('ram', f'{ceil(needed / 2**20)}MiB')} or more"
        )

    def beside(self, nbytes: int) -> StepDoesNotFit:
        """Return the error for a process that is allowed some bytes more, and takes them too."""
        needed, allowed = self.needed + nbytes, self.allowed + nbytes
        process = self.process + nbytes
        return StepDoesNotFit(self.step, needed=needed, allowed=allowed, process=process)


class OutOfDeviceMemory(RunFailed, MemoryError):
    """A GPU that has less memory left than a run needs."""
