"""Detection of GPUs and their nominal figures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from znni.core.errors import InvalidInput
from znni.machine.cuda import (
    CHOICES,
    INSTALL,
    compute_capability,
    cupy,
    cupy_packages,
    device_errors,
)

Found = TypeVar("Found")

# Float32 multiply-adds of a multiprocessor in a cycle. Compute capabilities made for double
# precision have half as many.
LANES = 128
HALF_THE_LANES = {60, 70, 72, 75, 80}

# Share of the memory clock's bandwidth that copies within a GPU reach. On an H200 they reach 4.27
# of 4.81 TB/s.
SUSTAINED = 0.887


class Gpu(NamedTuple):
    """Nominal figures of a GPU.

    Attributes:
        name: name by the driver.
        free: bytes of free memory.
        flops: float32 operations per second, a multiply-add counted as two.
        bandwidth: bytes per second to and from its memory.
        capability: compute capability, 90 for 9.0, or that of the GPU that it stands for.
    """

    name: str
    free: int
    flops: float
    bandwidth: float
    capability: int


def detect_gpus() -> list[Gpu]:
    """Return all GPUs that CUDA can use now; none if CuPy or a driver is missing.

    Raises:
        RunFailed: CUDA finds a GPU but cannot use it.
    """
    if why_no_gpu():
        return []
    with device_errors("the GPU"):
        return in_threads(_look_at, cupy().cuda.runtime.getDeviceCount())


@cache
def has_driver() -> bool:
    """Return whether there is a driver for GPUs. There may be no GPU, or no CuPy."""
    return _driver() is not None


@cache
def _driver() -> Any:
    """Return the driver's library, or None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def start_driver(driver: Any) -> None:
    """Start a driver, and a context on each GPU, which CUDA and CuPy go on with.

    Each takes 0.1 to 0.2 s. CuPy would keep all threads of Python waiting meanwhile. An error is
    left to CuPy, which meets and reports the same one.

    Args:
        driver: the driver's library; if it is None, nothing is done.
    """
    count = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return

    def start_context(number: int) -> None:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if not driver.cuDeviceGet(ctypes.byref(device), number):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    in_threads(start_context, count.value)


def in_threads(work: Callable[[int], Found], count: int) -> list[Found]:
    """Return the results of a function for the positions of all GPUs, called at the same time."""
    with ThreadPoolExecutor(max(1, count)) as pool:
        return list(pool.map(work, range(count)))


class Missing(NamedTuple):
    """A reason why no GPU can be used.

    Attributes:
        what: what it lacks, with a remedy; nothing if there is a GPU.
        in_vain: whether driver and CuPy are installed, but do not go together.
    """

    what: str
    in_vain: bool = False


@cache
def missing_for_gpu() -> Missing:
    """Return what is missing to use a GPU."""
    if not has_driver():
        return Missing("there is no NVIDIA driver; install one if the machine has a GPU")
    if find_spec("cupy") is None:
        return Missing(f"CuPy is not installed; {INSTALL}")
    starting = Thread(target=start_driver, args=(_driver(),))
    starting.start()
    try:
        runtime = cupy().cuda.runtime
    except InvalidInput as error:
        return Missing(str(error), in_vain=True)
    finally:
        starting.join()
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return _why_cuda_fails(runtime, error)
    return Missing("" if count else "CUDA finds no GPU")


def why_no_gpu() -> str:
    """Return what is missing, with a remedy, or an empty string if there is a GPU."""
    return missing_for_gpu().what


def _why_cuda_fails(runtime: Any, error: Exception) -> Missing:
    """Return why CUDA finds no GPU: often the driver is older than CuPy's CUDA."""
    driver, needed = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver >= needed // 1000 * 1000:  # a CUDA runs with the drivers of its major version
        return Missing(f"CUDA finds no GPU ({error})")
    return Missing(
        f"the NVIDIA driver supports CUDA {_version(driver)}, and CuPy is for CUDA "
        f"{_version(needed)}; update the driver, or remove {' and '.join(cupy_packages())} with "
        f"pip uninstall, then install CuPy for the driver's CUDA: {CHOICES}",
        in_vain=True,
    )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _look_at(number: int) -> Gpu:
    """Return the figures of one GPU. The first use of a GPU takes half a second."""
    cuda = cupy().cuda
    with cuda.Device(number) as device:
        cupy().get_default_memory_pool().free_all_blocks()  # unused blocks count as free
        capability = compute_capability(device)
        attributes = device.attributes
        return Gpu(
            name=cuda.runtime.getDeviceProperties(number)["name"].decode(),
            free=device.mem_info[0],
            flops=nominal_flops(
                capability, attributes["MultiProcessorCount"], attributes["ClockRate"]
            ),
            bandwidth=nominal_bandwidth(
                attributes["GlobalMemoryBusWidth"], attributes["MemoryClockRate"]
            ),
            capability=capability,
        )


def nominal_flops(capability: int, multiprocessors: int, kilohertz: int) -> float:
    """Return float32 operations per second, without tensor cores."""
    lanes = LANES // 2 if capability in HALF_THE_LANES else LANES
    return 2.0 * lanes * multiprocessors * kilohertz * 1e3


def nominal_bandwidth(bits: int, kilohertz: int) -> float:
    """Return the bytes per second of copies, for memory that moves data twice per clock cycle."""
    return SUSTAINED * 2.0 * bits / 8 * kilohertz * 1e3
