"""The chips that kernels are written for: sizes, rates and compute capabilities.

A compute capability is a number such as 90 for 9.0. A primitive asks for the capability that
brought its instructions, or for one family if only that family has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from znni.machine.machine import Device
from znni.machine.nvrtc import architecture_of

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

# The first compute capability with tensor cores for float16; and the first one whose tensor cores
# take tf32 and bfloat16, which also brought copies to shared memory that run beside the threads.
FLOAT16_CORES = 70
TF32_CORES = 80
AMPERE_NEEDED = "compute capability 8.0 (Ampere) or later"


# Cycles of a multiprocessor in a second, about.
CLOCK = 1.7e9


@dataclass(frozen=True)
class Chip:
    """The multiprocessors of GPUs of one compute capability.

    Attributes:
        capability: the compute capability.
        shared_bytes: shared memory of a multiprocessor.
        block_shared_bytes: shared memory that one block may take.
        cycle_flops: operations of a multiprocessor in a cycle, at the nominal float32 rate.
        tensor_flops: operations of its tensor cores in a cycle, of float16 with sums in float32, by
            instructions of warps.
        own_tensor_flops: the same by instructions that only this chip has; 0 if it has none.
        has_warpgroups: whether tensor cores multiply for whole warpgroups (wgmma).
        has_clusters: whether blocks can share their shared memories, in clusters.
    """

    capability: int
    shared_bytes: int
    block_shared_bytes: int
    cycle_flops: int
    tensor_flops: int
    own_tensor_flops: int = 0
    has_warpgroups: bool = False
    has_clusters: bool = False

    @property
    def product_warps(self) -> int:
        """Warps that make a product together."""
        return WARPGROUP_THREADS // LANES if self.has_warpgroups else 1

    @property
    def library_share(self) -> float:
        """The rate of tensor cores over that of float32, in libraries, as a share of Hopper's."""
        own, hopper = (
            max(chip.tensor_flops, chip.own_tensor_flops) / chip.cycle_flops
            for chip in (self, CHIPS[90])
        )
        return own / hopper

    @property
    def architecture(self) -> str:
        """NVRTC's name of the architecture."""
        return architecture_of(self.capability)


# Rates of float32 are those of 64 or 128 lanes. H200 is faster than its 128 lanes at the nominal
# clock, because the rate is by the clock that it sustains. Rates of tensor cores are NVIDIA's, for
# the slower GPUs of a capability, which are those for games (GeForce). Hopper's rate is that of
# mma.sync, which reaches 60 % of what wgmma does; Blackwell has such instructions beside others of
# its own, and its rate is taken to be Hopper's.


def _blackwell(capability: int) -> Chip:
    return Chip(
        capability,
        228 * KIB,
        227 * KIB,
        cycle_flops=256,
        tensor_flops=2560,
        own_tensor_flops=8192,
        has_clusters=True,
    )


_CHIPS = (
    Chip(80, 164 * KIB, 163 * KIB, cycle_flops=128, tensor_flops=2048),
    Chip(86, 100 * KIB, 99 * KIB, cycle_flops=256, tensor_flops=512),
    Chip(87, 164 * KIB, 163 * KIB, cycle_flops=256, tensor_flops=1024),
    Chip(89, 100 * KIB, 99 * KIB, cycle_flops=256, tensor_flops=512),
    Chip(
        90,
        228 * KIB,
        227 * KIB,
        cycle_flops=298,
        tensor_flops=2560,
        own_tensor_flops=4096,
        has_warpgroups=True,
        has_clusters=True,
    ),
    _blackwell(100),
    _blackwell(103),
    _blackwell(110),
    Chip(120, 100 * KIB, 99 * KIB, cycle_flops=256, tensor_flops=512, has_clusters=True),
    Chip(121, 100 * KIB, 99 * KIB, cycle_flops=256, tensor_flops=512, has_clusters=True),
)
CHIPS = {chip.capability: chip for chip in _CHIPS}

# For these compute capabilities, GPUs for games have half of the tensor cores' rate of the others
# (A40, L40S, RTX 6000). The names of GPUs for games contain this word.
HALVED_FOR_GAMES = {86, 89, 120}
FOR_GAMES = "GeForce"

# The chips whose kernels are compiled in tests: their limits are those of all. 8.6 and 8.9 have as
# little shared memory as 12.0, and 10.0 needs as many registers. A test checks for a sample of
# kernels that 8.9 has the machine code of 8.6.
COMPILED = 80, 90, 120

AMPERE, HOPPER = CHIPS[80], CHIPS[90]

# From this compute capability on, the compiler needs more registers for the same kernel.
BLACKWELL = 100


def chip_of(device: Device) -> Chip | None:
    """Return a GPU's chip, or None if its tensor cores do not take tf32 and bfloat16.

    A capability that is not known has what all chips from Ampere on have.
    """
    capability = capability_of(device)
    if capability < TF32_CORES:
        return None
    least = CHIPS[86]
    chip = CHIPS.get(capability) or replace(least, capability=capability)
    if capability in HALVED_FOR_GAMES and FOR_GAMES not in device.name:
        return replace(chip, tensor_flops=2 * chip.tensor_flops)
    return chip


def processors_of(device: Device, chip: Chip) -> int:
    """Return about how many multiprocessors a GPU has, by its nominal rate."""
    return max(1, round(device.flops / (chip.cycle_flops * CLOCK)))


def capability_of(device: Device) -> int:
    """Return a GPU's compute capability; if unknown, the one that most GPUs have at least."""
    return device.capability or TF32_CORES


def thread_registers(threads: int) -> int:
    """Return the registers that each thread can have if a multiprocessor holds so many threads."""
    warps = -(-threads // (LANES * SCHEDULERS))
    share = REGISTERS // SCHEDULERS // (warps * LANES)
    return min(MOST_THREAD_REGISTERS, share // REGISTERS_TOGETHER * REGISTERS_TOGETHER)


def turns(loads: Iterable[Iterable[int]]) -> int:
    """Return the turns that loads from shared memory take. In each turn, a bank gives one word.

    Args:
        loads: the words that a warp reads at a time, for each load. Lanes may share a word.
    """
    return sum(max(Counter(word % BANKS for word in set(words)).values()) for words in loads)


def quickest_pitch(least: int, loads: Callable[[int], Iterable[Iterable[int]]]) -> int:
    """Return the least distance between rows for which loads take the fewest turns.

    Args:
        least: the words of a row.
        loads: returns the loads for a distance in words, as ``turns`` takes them.
    """
    return min(range(least, least + BANKS), key=lambda pitch: turns(loads(pitch)))
