"""The GPU memory that layers on the host may take when they compute there."""

from __future__ import annotations

from typing import NamedTuple

from znni.plans.cost import Memory

# The shares of a GPU's memory for layers on the host. The working share serves the pieces of one
# layer at a time; the resident share is for all of them together. The rest is for layers that run
# on the GPU, if there are any.
WORKING_SHARE = 3 / 8
RESIDENT_SHARE = 1 / 8


class GpuBudget(NamedTuple):
    """The GPU bytes that one layer on the host may take.

    Each layer may keep an equal share of the resident bytes. So each layer's fastest primitive that
    fits can be chosen without a look at the other layers.

    Attributes:
        working: the bytes within a call.
        resident: the bytes between calls.
    """

    working: int = 0
    resident: int = 0

    def holds(self, memory: Memory) -> bool:
        """Return whether a primitive takes no more than the budget."""
        return memory.gpu_working <= self.working and memory.gpu_resident <= self.resident


NO_GPU_BUDGET = GpuBudget()


def gpu_budget_per_layer(memory: int, layers: int) -> GpuBudget:
    """Return the GPU budget of each layer on the host.

    Args:
        memory: the bytes of the GPU that a plan may use.
        layers: the number of layers that may compute there.
    """
    return GpuBudget(int(memory * WORKING_SHARE), int(memory * RESIDENT_SHARE / layers))


def bytes_for_gpu_layers(memory: int) -> int:
    """Return the bytes left for layers that run on the GPU."""
    return memory - int(memory * (WORKING_SHARE + RESIDENT_SHARE))
