"""NVIDIA's GPUs as the engine sees them."""

from __future__ import annotations

from znni.core.shapes import Shape5
from znni.engine.backends.registry import DeviceBackend, PartRunner, PartToRun
from znni.engine.tiles import Allocate, allocate_new
from znni.machine.cuda import device_errors
from znni.machine.device_arena import DEVICE_BYTES, device_peak
from znni.machine.gpus import check_gpus, detect_gpus
from znni.machine.locked_arrays import LockedArrays, pinned
from znni.machine.machine import Device
from znni.network.weights import Float32
from znni.plans.device_partition import locks_blocks
from znni.plans.plan import Plan

# Memory of CUDA, CuPy and the compiler on the host.
HOST_BYTES = 1024 * 2**20

# Time to start a GPU and load its kernels, which the user's cache may hold. The paper's networks
# took 2.6 to 4.1 s before the first patch; the host's part of it is counted elsewhere.
START_SECONDS = 2.0


def part_runner(to_run: PartToRun) -> PartRunner:
    """Return a part of a plan, ready to run on the first GPU."""
    from znni.engine.backends.cuda.part_runner import DevicePartRunner  # planning needs no kernels
    from znni.engine.backends.cuda.windows import DeviceWindows

    return (DeviceWindows if to_run.plan.network.window else DevicePartRunner)(to_run)


def allocator(plan: Plan) -> Allocate:
    """Return what gives the arrays that blocks are read into: page-locked ones, if that helps."""
    return LockedArrays().array if locks_blocks(plan.network) else allocate_new


def tensor(shape: Shape5, name: str) -> Float32:
    """Return a page-locked array for what layers on the host hand on to a GPU.

    Raises:
        RunFailed: the system does not lock so many pages.
    """
    with device_errors(name):
        return pinned(shape)


def free(device: Device) -> int:
    """Return the free bytes of a GPU now."""
    return detect_gpus()[device.number].memory


BACKEND = DeviceBackend(
    part_runner,
    allocator=allocator,
    tensor=tensor,
    check=check_gpus,
    free=free,
    peak=device_peak,
    stores=True,
    several=True,
    host_bytes=HOST_BYTES,
    device_bytes=DEVICE_BYTES,
    start_seconds=START_SECONDS,
)
