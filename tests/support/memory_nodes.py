"""Files that describe nodes of memory, as Linux writes them."""

from __future__ import annotations

from pathlib import Path


def write_nodes(folder: Path, *cores: str) -> Path:
    """Write a node of 1 GiB for each list of cores, such as ``0-3,8``, and return the folder."""
    for number, each in enumerate(cores):
        node = folder / f"node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{each}\n")
        (node / "meminfo").write_text(f"Node {number} MemTotal:       {2**20} kB\n")
    return folder
