"""Detection of GPUs and their nominal figures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from znni.core.background import in_background
from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.processors import GPU, HOST
from znni.machine import nvml
from znni.machine.cuda import CHOICES, INSTALL, cupy, cupy_packages, device_errors, stood_for
from znni.machine.known_gpus import KnownGpu, known_gpus, store_gpus
from znni.machine.machine import Device, nominal_link
from znni.machine.nvml import Driver

Found = TypeVar("Found")

# Float32 multiply-adds of a multiprocessor in a cycle. Compute capabilities made for double
# precision have half as many.
LANES = 128
HALF_THE_LANES = {60, 70, 72, 75, 80}

# Share of the memory clock's bandwidth that copies within a GPU reach. On an H200 they reach 4.27
# of 4.81 TB/s.
SUSTAINED = 0.887

# If the driver's free memory and CUDA's differ by less than so many bytes, both count it alike. The
# difference is part of the memory that CUDA takes.
ALIKE = 2**30

CPU = option("device", HOST)


class Started(NamedTuple):
    """The start of CUDA's driver.

    Attributes:
        uuids: the identities of the GPUs by the driver, in CUDA's order.
        alone: whether none of them had a context in this process before.
    """

    uuids: tuple[str, ...] = ()
    alone: bool = False


NOT_STARTED = Started()


@dataclass
class _Cuda:
    """The start of CUDA in this process.

    Attributes:
        asked: the driver's answer before workers took memory of the GPUs; None: it was not asked,
            or its answer was not complete.
        seen: the driver's answer before CUDA took memory in this process; None as for ``asked``.
        begun: whether CUDA has begun to start.
        starting: the start of the driver, once it has begun.
        started: the contexts that were started.
        asking: the thread that asks the driver before workers start; None: none does.
        looked: whether CUDA has inspected all GPUs.
        promised: the identities of the GPUs that were returned before CUDA inspected them.
        looking: a lock that is held while CUDA inspects the GPUs.
    """

    asked: Driver | None = None
    seen: Driver | None = None
    begun: bool = False
    starting: Future[Started] | None = None
    started: Started = NOT_STARTED
    asking: Thread | None = None
    looked: bool = False
    promised: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._answering, self.looking = Lock(), Lock()

    def ask(self) -> None:
        """Ask the driver, before workers start."""
        with self._answering:
            if not self.begun:
                self.asked = nvml.look()

    def begin(self) -> None:
        """Ask the driver, before CUDA starts."""
        with self._answering:
            if not self.begun:
                self.seen = nvml.look()
                self.begun = True

    def start(self) -> Future[Started]:
        """Begin to start the driver in a thread, unless that has begun; return its result."""
        self.begin()
        with self._answering:
            if self.starting is None:
                self.starting = in_background(lambda: start_driver(_driver()))
            return self.starting

    def before(self) -> Driver | None:
        """Return what the driver tells, without the memory that CUDA takes for this run."""
        with self._answering:
            return self.asked or (self.seen if self.begun else nvml.look())


_cuda = _Cuda()


def detect_gpus() -> list[Device]:
    """Return all GPUs that CUDA can use now, with their free memory; none without CuPy or driver.

    If CUDA has found the same GPUs before, it is not started. Only the driver is asked.

    Raises:
        RunFailed: CUDA finds a GPU but cannot use it.
    """
    driver = None if _cuda.looked or not has_driver() else _cuda.before()
    known = known_gpus(driver) if driver else []
    if not driver or not known:
        return look_at_gpus()
    _cuda.promised = tuple(gpu.uuid for gpu in known)
    free = {gpu.uuid: gpu.free for gpu in driver.gpus}
    return [_nominal(gpu, max(0, free[gpu.uuid] - gpu.taken)) for gpu in known]


def are_known() -> bool:
    """Return whether an earlier run has found the GPUs. Then CUDA need not start to find them."""
    driver = _cuda.before() if has_driver() else None
    return bool(driver and known_gpus(driver))


def begin_cuda() -> None:
    """Begin to start CUDA's driver, if there is one, long before CuPy is imported.

    It starts in a thread, which holds no lock of Python meanwhile.
    """
    if not not_installed_for_gpu():
        _cuda.start()


def ask_driver() -> None:
    """Begin to ask the driver for the free memory, before processes of this run take some of it.

    Until ``forget_answer`` is called, this memory counts as free, unless CUDA inspects the GPUs.
    """
    _cuda.asking = Thread(target=_cuda.ask)
    _cuda.asking.start()


def forget_answer() -> None:
    """Forget the driver's answer, when a run is planned. A later run asks the driver again."""
    if _cuda.asking:
        _cuda.asking.join()  # it would note its answer for that run
    _cuda.asked = _cuda.asking = None


def look_at_gpus() -> list[Device]:
    """Start CUDA on all GPUs, and return them, as ``detect_gpus``.

    Raises:
        RunFailed: CUDA finds a GPU but cannot use it.
    """
    with _cuda.looking:  # a thread may be starting CUDA already
        gpus = list[tuple[KnownGpu, int]]()
        try:
            if not why_no_gpu():
                with device_errors("the GPU"):
                    gpus = in_threads(_look_at, cupy().cuda.runtime.getDeviceCount())
        finally:
            if not _cuda.looked:
                _keep(gpus)
        _cuda.looked = True
    return [_nominal(gpu, free) for gpu, free in gpus]


def check_gpus() -> None:
    """Start CUDA, and check that its GPUs are those that plans were made for.

    Raises:
        RunFailed: they are others, or CUDA cannot use them.
    """
    if not _cuda.looked:
        look_at_gpus()
    why = why_no_gpu()
    if _cuda.promised and (why or _cuda.promised != _cuda.started.uuids):
        why = why or "CUDA finds others than in earlier runs"
        raise RunFailed(f"the GPUs cannot be used: {why}; run again, or with {CPU}")


def forget_gpus() -> None:
    """Forget what CUDA found in earlier runs, so that the next run asks it again."""
    if driver := nvml.look():
        store_gpus(driver, [])


def _keep(found: Sequence[tuple[KnownGpu, int]]) -> None:
    """Keep what CUDA found, if the driver counts memory as CUDA does.

    The bytes that CUDA took are those that were free before. So no context may have been there.
    """
    before, started = _cuda.seen, _cuda.started
    if before is None:
        return
    if not found or (_cuda.promised and _cuda.promised != started.uuids):
        store_gpus(before, [])  # what is kept is wrong
    if not found:
        return
    after = nvml.look()
    if not started.alone or len(started.uuids) != len(found) or not after:
        return
    then, now = ({gpu.uuid: gpu.free for gpu in it.gpus} for it in (before, after))
    gpus = [
        gpu._replace(uuid=uuid, taken=then.get(uuid, 0) - free)
        for uuid, (gpu, free) in zip(started.uuids, found, strict=True)
    ]
    counted = (
        abs(now.get(uuid, 0) - free) < ALIKE
        for uuid, (_, free) in zip(started.uuids, found, strict=True)
    )
    if all(counted):
        store_gpus(before, gpus)


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


def start_driver(driver: Any) -> Started:
    """Start a driver, and a context on each GPU, which CUDA and CuPy use afterwards.

    Each takes 0.1 to 0.2 s. If CuPy did this, all threads of Python would wait meanwhile. An error
    is ignored here, because CuPy meets and reports the same one.

    Args:
        driver: the driver's library; if it is None, nothing is done.
    """
    count = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return NOT_STARTED
    try:
        found = in_threads(partial(_start_context, driver), count.value)
    except AttributeError:  # the driver is older than these functions
        return NOT_STARTED
    return Started(tuple(uuid for uuid, _ in found), all(alone for _, alone in found))


def _start_context(driver: Any, number: int) -> tuple[str, bool]:
    """Start a context on a GPU; return its identity, and whether there was none before."""
    device, context, identity = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
    flags, active = ctypes.c_uint(), ctypes.c_int()
    failed = (
        driver.cuDeviceGet(ctypes.byref(device), number)
        or driver.cuDeviceGetUuid(ctypes.byref(identity), device)
        or driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    return f"GPU-{UUID(bytes=bytes(identity))}", not failed and not active.value


def in_threads(work: Callable[[int], Found], count: int) -> list[Found]:
    """Return the results of a function for the positions of all GPUs, called at the same time."""
    if count == 1:
        return [work(0)]
    with ThreadPoolExecutor(max(1, count)) as pool:
        return list(pool.map(work, range(count)))


class Missing(NamedTuple):
    """A reason why no GPU can be used.

    Attributes:
        what: what is missing, with a remedy; nothing if there is a GPU.
        in_vain: whether driver and CuPy are installed, but do not work together.
    """

    what: str
    in_vain: bool = False


def not_installed_for_gpu() -> str:
    """Return what is not installed to use a GPU, with a remedy, or an empty string.

    CUDA is not started. So there may be no GPU although all is installed.
    """
    if not has_driver():
        return "there is no NVIDIA driver; install one if the machine has a GPU"
    if find_spec("cupy") is None:
        return f"CuPy is not installed; {INSTALL}"
    return ""


@cache
def missing_for_gpu() -> Missing:
    """Return what is missing to use a GPU."""
    if not_installed := not_installed_for_gpu():
        return Missing(not_installed)
    starting = _cuda.start()
    try:
        runtime = cupy().cuda.runtime
    except InvalidInput as error:
        return Missing(str(error), in_vain=True)
    _cuda.started = starting.result()
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


def _look_at(number: int) -> tuple[KnownGpu, int]:
    """Return what CUDA finds about one GPU except its identity, and its free bytes."""
    cuda = cupy().cuda
    with cuda.Device(number) as device:
        cupy().get_default_memory_pool().free_all_blocks()  # unused blocks count as free
        attributes = device.attributes
        found = KnownGpu(
            uuid="",
            taken=0,
            name=cuda.runtime.getDeviceProperties(number)["name"].decode(),
            capability=int(device.compute_capability),
            multiprocessors=attributes["MultiProcessorCount"],
            kilohertz=attributes["ClockRate"],
            bits=attributes["GlobalMemoryBusWidth"],
            memory_kilohertz=attributes["MemoryClockRate"],
        )
        return found, device.mem_info[0]


def _nominal(gpu: KnownGpu, free: int) -> Device:
    """Return a GPU with its nominal figures, and its free memory.

    Raises:
        InvalidInput: it should stand for a GPU that it cannot stand for.
    """
    capability = stood_for(gpu.capability)
    return Device(
        GPU,
        name=gpu.name,
        memory=free,
        threads=1,
        flops=nominal_flops(capability, gpu.multiprocessors, gpu.kilohertz),
        bandwidth=nominal_bandwidth(gpu.bits, gpu.memory_kilohertz),
        capability=capability,
        cudnn=find_spec("cudnn") is not None,
        link=nominal_link(capability),
    )


def nominal_flops(capability: int, multiprocessors: int, kilohertz: int) -> float:
    """Return float32 operations per second, without tensor cores."""
    lanes = LANES // 2 if capability in HALF_THE_LANES else LANES
    return 2.0 * lanes * multiprocessors * kilohertz * 1e3


def nominal_bandwidth(bits: int, kilohertz: int) -> float:
    """Return the bytes per second of copies, for memory that moves data twice per clock cycle."""
    return SUSTAINED * 2.0 * bits / 8 * kilohertz * 1e3
