"""The processors that run layers, by the names that options, plans and files have for them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

# A kind of device: the host, or a device with memory of its own. Such a device is called a GPU,
# whatever backend runs it.
DeviceKind: TypeAlias = Literal["cpu", "gpu"]

# Where the layers of a plan run: on the host, on a GPU, or first on the one and then on the other.
Processors: TypeAlias = Literal["cpu", "gpu", "cpu+gpu"]

# A user's choice of processors; the fastest by default.
DeviceChoice: TypeAlias = Literal["auto", "cpu", "gpu", "cpu+gpu"]

HOST: Final = "cpu"
GPU: Final = "gpu"
HOST_AND_GPU: Final = "cpu+gpu"
FASTEST: Final = "auto"


def has_own_memory(kind: DeviceKind) -> bool:
    """Return whether arrays of a kind of device lie in a memory of its own, not in the host's."""
    return kind != HOST


def may_use_host(choice: DeviceChoice) -> bool:
    """Return whether layers may run on the host."""
    return choice != GPU


def may_use_gpu(choice: DeviceChoice) -> bool:
    """Return whether layers may run on a GPU, or use one."""
    return choice != HOST


def needs_gpu(choice: DeviceChoice) -> bool:
    """Return whether there is no plan without a GPU."""
    return choice in (GPU, HOST_AND_GPU)
