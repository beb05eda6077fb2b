"""Description of the hardware that a plan is for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from znni.core.errors import InvalidInput, option
from znni.core.file_fields import UNLESS_DEFAULT
from znni.core.plan_options import memory_size
from znni.core.processors import GPU, HOST, DeviceKind, has_own_memory
from znni.machine.processor import PAIRS_PER_CYCLE

# Cores share the memory bandwidth. From 1 to 16 cores, it grew as their number to this power.
BANDWIDTH_EXPONENT = 2 / 3

# Bytes per second that HDF5 moves to and from the system's page cache. Solid state drives sustain
# about as much; disks and networks are slower.
NOMINAL_STORAGE = 2e9

# The oldest compute capability that CUDA 12 and its cuDNN support.
OLDEST_CAPABILITY = 50

# Bytes per second between host memory and a GPU, each way, from a compute capability on. The first
# is measured with an H200: copies of pinned memory over 16 lanes of PCI Express 5. The values for
# PCI Express 4 and 3 are estimates.
LINKS = ((90, 55e9), (80, 24e9), (0, 12e9))


# The backends of znni itself.
OWN_BACKENDS: dict[DeviceKind, str] = {HOST: "host", GPU: "cuda"}


@dataclass(frozen=True)
class Device:
    """A processor with its own memory.

    Attributes:
        kind: ``cpu`` or ``gpu``.
        name: name for reports.
        memory: bytes that a plan may use.
        threads: number of worker threads (1 for a GPU).
        flops: nominal float32 operations per second, all threads.
        bandwidth: nominal bytes per second to and from memory.
        bfloat16: True if it multiplies bfloat16 and adds in float32 (AVX512_BF16).
        pairs_per_cycle: vectors of bfloat16 pairs that a core multiplies in a cycle, if it can.
        capability: compute capability of a GPU, 90 for 9.0; 0 if unknown.
        cudnn: True if NVIDIA's cuDNN is installed for it.
        link: nominal bytes per second between a GPU and the host's memory, each way.
        number: index of a GPU among those that CUDA sees.
        backend: name of the backend that runs it, if that is not znni's own of its kind.

    Raises:
        InvalidInput: a rate is not positive, or not finite.
    """

    kind: DeviceKind
    name: str
    memory: int
    threads: int
    flops: float
    bandwidth: float
    bfloat16: bool = False
    pairs_per_cycle: float = PAIRS_PER_CYCLE
    capability: int = 0
    cudnn: bool = False
    link: float = LINKS[-1][1]
    number: int = 0
    backend: str = field(default="", metadata=UNLESS_DEFAULT)

    def __post_init__(self) -> None:
        _check_rates(self.name, flops=self.flops, bandwidth=self.bandwidth, link=self.link)
        if not 0 < self.pairs_per_cycle < inf:
            raise InvalidInput(
                f"{self.name} has pairs_per_cycle {self.pairs_per_cycle!r}; give a positive number "
                f"of vectors"
            )

    @property
    def has_own_memory(self) -> bool:
        """True for a GPU: its arrays lie in a memory of its own, and blocks are copied to it."""
        return has_own_memory(self.kind)

    @property
    def backend_name(self) -> str:
        """The name of the backend that runs it."""
        return self.backend or OWN_BACKENDS[self.kind]

    @property
    def core_bandwidth(self) -> float:
        """The bytes per second that one core of a host moves, if no other does."""
        alone: float = self.bandwidth / self.threads**BANDWIDTH_EXPONENT
        return alone


@dataclass(frozen=True)
class Storage:
    """Storage that holds the volumes.

    Attributes:
        read: nominal bytes per second of reads.
        write: nominal bytes per second of writes.

    Raises:
        InvalidInput: a rate is not positive, or not finite.
    """

    read: float = NOMINAL_STORAGE
    write: float = NOMINAL_STORAGE

    def __post_init__(self) -> None:
        _check_rates("storage", read=self.read, write=self.write)


def _check_rates(owner: str, **rates: float) -> None:
    for name, rate in rates.items():
        if not 0 < rate < inf:
            raise InvalidInput(f"{owner} has {name} {rate!r}; give a positive number a second")


@dataclass(frozen=True)
class Machine:
    """A host and its GPUs.

    Attributes:
        host: processors and memory of the host.
        gpus: GPUs beside them; a plan uses the first ones.
        absent: True if the machine was described in a file, not detected.
        storage: storage that volumes are read from and written to.
        used_gpus: number of GPUs that compute patches at the same time, in a plan that uses GPUs.
    """

    host: Device
    gpus: tuple[Device, ...] = ()
    absent: bool = False
    storage: Storage = Storage()
    used_gpus: int = 1


def limited(
    machine: Machine,
    ram: int | str | None,
    threads: int | None,
    gpu_memory: int | str | None = None,
) -> Machine:
    """Return a machine limited to the part that a plan may use.

    Args:
        machine: the whole machine, with a thread for every core.
        ram: bytes of host memory, as a number or as ``8GiB``; by default the machine's.
        threads: number of worker threads; more threads than cores are no faster.
        gpu_memory: bytes of each GPU's memory; by default the machine's.

    Raises:
        InvalidInput: ``ram`` or ``gpu_memory`` is not a size, or one of these is not positive.
    """
    host = machine.host
    memory = _memory_limit("ram", ram)
    cores, threads = host.threads, host.threads if threads is None else threads
    if threads < 1:
        raise InvalidInput(f"{threads} threads cannot compute; give at least 1 (of {cores})")
    busy = min(threads, cores) / cores
    part = replace(
        host,
        memory=memory or host.memory,
        threads=threads,
        flops=host.flops * busy,
        bandwidth=host.bandwidth * busy**BANDWIDTH_EXPONENT,
    )
    each = _memory_limit("gpu_memory", gpu_memory)
    gpus = tuple(replace(gpu, memory=each or gpu.memory) for gpu in machine.gpus)
    return replace(machine, host=part, gpus=gpus)


def _memory_limit(name: str, given: int | str | None) -> int | None:
    """Return the bytes that an option allows, or None if it is not given."""
    if given is None:
        return None
    try:
        memory = memory_size(given)
    except ValueError as error:
        raise InvalidInput(f"{option(name, given)}: {error}") from None
    if memory < 1:
        of = "RAM" if name == "ram" else "GPU memory"
        raise InvalidInput(f"{memory} bytes of {of} hold nothing; give a size such as 8GiB")
    return memory


def nominal_link(capability: int) -> float:
    """Return bytes per second between host memory and a GPU of a compute capability, each way."""
    return next(link for least, link in LINKS if capability >= least)
