"""Nodes of memory (NUMA): parts of a machine's memory, each with the cores that are near to it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from znni.core.system import text_of

NODES = Path("/sys/devices/system/node")


class MemoryNode(NamedTuple):
    """A part of the memory.

    Attributes:
        cores: the numbers of the cores near to it that this process may use.
        memory: the bytes installed.
    """

    cores: tuple[int, ...]
    memory: int


def memory_nodes() -> list[MemoryNode]:
    """Return the nodes with cores that this process may use; none if the system does not say."""
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = affinity(0) if affinity else set()
    found = []
    for folder in sorted(NODES.glob("node[0-9]*"), key=lambda it: int(it.name[4:])):
        cores = tuple(sorted(allowed.intersection(_numbers(folder / "cpulist"))))
        kib = re.search(r"MemTotal:\s*(\d+) kB", text_of(folder / "meminfo"))
        if cores:
            found.append(MemoryNode(cores, 1024 * int(kib[1]) if kib else 0))
    return found


def cores_of_processes(count: int) -> list[tuple[int, ...] | None]:
    """Return the cores for each of several processes that share this machine; None: all.

    Each gets the cores of one node, so that all its memory is near. If the nodes have unequal
    numbers of cores, or cannot have equal numbers of processes, each process gets all cores.
    """
    nodes = memory_nodes()
    if len(nodes) < 2 or count % len(nodes) or len({len(node.cores) for node in nodes}) > 1:
        return [None] * count
    return [nodes[index % len(nodes)].cores for index in range(count)]


def _numbers(path: Path) -> Iterator[int]:
    """Yield the numbers of a list such as ``0-3,8-11``."""
    for part in filter(None, text_of(path).split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
