"""The chips that kernels are written for: sizes, rates and compute capabilities.

A compute capability is a number such as 90 for 9.0. A primitive asks for the capability that
brought its instructions, or for one family if only that family has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine.machine import Device

KIB = 1024

# Every GPU since Maxwell. A bank of shared memory holds words of 4 bytes. Memory moves in sectors.
# A multiprocessor has four schedulers, each with a quarter of the warps and of the registers.
LANES = 32
BANKS = 32
SECTOR_BYTES = 32
SECTOR_FLOATS = SECTOR_BYTES // 4
SCHEDULERS = 4
REGISTERS = 64 * KIB
REGISTERS_TOGETHER = 8  # a thread gets registers in multiples of this
MOST_THREAD_REGISTERS = 255
MOST_BLOCK_THREADS = 1024
WARPGROUP_THREADS = 128
MOST_GRID_ROWS = 65535  # blocks along the second axis of a grid; along the first, 2^31 - 1

# Shared memory that a block may take on any GPU from compute capability 8.0 on, and what each block
# takes from its multiprocessor beside that.
COMMON_BLOCK_SHARED = 99 * KIB
RESERVED_SHARED = KIB

# The oldest compute capability that CUDA 12 and its cuDNN support; the first one with tensor cores
# for float16; and the first one whose tensor cores take tf32 and bfloat16, which also brought
# copies to shared memory that run beside the threads.
OLDEST = 50
FLOAT16_CORES = 70
TF32_CORES = 80


@dataclass(frozen=True)
class Family:
    """Chips of one compute capability.

    Attributes:
        capability: the compute capability.
        shared_bytes: shared memory of a multiprocessor.
        block_shared_bytes: shared memory that one block may take.
        cycle_flops: operations of a multiprocessor in a cycle, at the nominal float32 rate.
    """

    capability: int
    shared_bytes: int
    block_shared_bytes: int
    cycle_flops: int

    def includes(self, device: Device) -> bool:
        """Return whether a GPU is one of these chips."""
        return capability_of(device) == self.capability


# The only family with products of whole warpgroups (wgmma). The rate is an H200's.
HOPPER = Family(90, shared_bytes=228 * KIB, block_shared_bytes=227 * KIB, cycle_flops=298)


def capability_of(device: Device) -> int:
    """Return a GPU's compute capability; if unknown, the one that most GPUs have at least."""
    return device.capability or TF32_CORES


def thread_registers(threads: int) -> int:
    """Return the registers that each thread can have if a multiprocessor holds so many threads."""
    warps = -(-threads // (LANES * SCHEDULERS))
    share = REGISTERS // SCHEDULERS // (warps * LANES)
    return min(MOST_THREAD_REGISTERS, share // REGISTERS_TOGETHER * REGISTERS_TOGETHER)
