"""Memory that a virtual machine has never touched since it started.

The host of a virtual machine finds and clears a page when the machine first touches it. This takes
20 times as long as the machine's own first touch of memory that was used before. No system says
which pages are cold. So each run notes how much memory it took. That much is warm from then on.

Some virtual machines tell their host which pages are free, seconds after a program has ended. The
host takes these pages back, and they are cold again. So notes do not count there. An AMD EPYC under
Firecracker touched 3 GiB at 0.4 GiB/s, and at 8 GiB/s right after that. After 15 s without other
programs, it touched the first 256 MiB at 0.4 GiB/s again. There, a plan cannot know which pages
are cold: none right after another program, and all after a while. So it counts half of them.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from pathlib import Path

from znni.core.value_cache import ValueCache

# Memory that other programs have touched on any system that runs.
WARM_BYTES = 2**29

# Memory that a process touches and frees as it starts.
FREE_AGAIN_BYTES = 2**24

# The share of all other pages that counts as cold if the host takes free pages back.
TAKEN_BACK_SHARE = 0.5

# The number of leading bits that noted bytes are rounded down to. So plans seldom change.
NOTED_BITS = 2

# Bytes, by the system's name for its latest start.
NOTES = ValueCache("touched", 1, int)

BOOT = Path("/proc/sys/kernel/random/boot_id")
PROCESSORS = Path("/proc/cpuinfo")

# The devices by which a host takes memory back, and the feature that tells it of free pages.
BALLOONS = Path("/sys/bus/virtio/drivers/virtio_balloon")
REPORTING = 5  # VIRTIO_BALLOON_F_REPORTING; Linux lists features as digits, from number 0 on


def warm_bytes() -> float:
    """Return the bytes that are certainly warm; infinite if this is no virtual machine."""
    if not is_virtual():
        return inf
    if gives_pages_back():
        return FREE_AGAIN_BYTES
    return max(WARM_BYTES, NOTES.load(_start()) or 0)


def cold_share() -> float:
    """Return the share of the pages beyond ``warm_bytes`` that count as cold."""
    return TAKEN_BACK_SHARE if gives_pages_back() else 1.0


def note_warm(nbytes: int) -> None:
    """Note that so many bytes were touched in one process at the same time."""
    steady = nbytes >> max(0, nbytes.bit_length() - NOTED_BITS)
    steady <<= max(0, nbytes.bit_length() - NOTED_BITS)
    if steady <= WARM_BYTES or gives_pages_back() or steady <= warm_bytes():
        return
    NOTES.store(_start(), steady)


def is_virtual() -> bool:
    """Return whether this is a virtual machine that runs Linux."""
    try:
        text = PROCESSORS.read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split() and BOOT.exists()


def gives_pages_back() -> bool:
    """Return whether this virtual machine tells its host which pages are free."""
    for features in BALLOONS.glob("virtio*/features"):
        with suppress(OSError):
            if features.read_text()[REPORTING : REPORTING + 1] == "1":
                return True
    return False


def _start() -> str:
    """Return the system's name for its latest start."""
    return BOOT.read_text().strip()
