"""What layers of the host may take of a GPU that they compute on."""

from __future__ import annotations

from typing import NamedTuple

from znni.plans.cost import Memory

# Shares of a GPU's memory for them: for the pieces of one layer at a time, and for what all keep.
# The rest is for layers that run on the GPU, if there are any.
WORKING_SHARE = 3 / 8
RESIDENT_SHARE = 1 / 8


class GpuBudget(NamedTuple):
    """Bytes of a GPU for a layer of the host.

    Each may keep an equal share of what all may: so the fastest of those that fit can be chosen for
    each without a look at the others.

    Attributes:
        working: within a call.
        resident: between calls.
    """

    working: int = 0
    resident: int = 0

    def holds(self, memory: Memory) -> bool:
        """Whether a primitive takes no more."""
        return memory.gpu_working <= self.working and memory.gpu_resident <= self.resident


NO_GPU_BUDGET = GpuBudget()


def gpu_budget_per_layer(memory: int, layers: int) -> GpuBudget:
    """The room for each of so many layers.

    Args:
        memory: bytes of the GPU that a plan may use.
        layers: that may compute there.
    """
    return GpuBudget(int(memory * WORKING_SHARE), int(memory * RESIDENT_SHARE / layers))


def bytes_for_gpu_layers(memory: int) -> int:
    """Bytes that are left for layers on the GPU."""
    return memory - int(memory * (WORKING_SHARE + RESIDENT_SHARE))
