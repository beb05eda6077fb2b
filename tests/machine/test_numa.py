"""Nodes of memory, as the files of Linux describe them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from memory_nodes import write_nodes

from znni.machine import numa
from znni.machine.numa import MemoryNode, cores_of_processes, memory_nodes

GIB = 2**30


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The cores that this process may use."""
    cores = set(range(8))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: cores, raising=False)
    return cores


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of nodes, still empty."""
    monkeypatch.setattr(numa, "NODES", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("cores")
def test_nodes_have_cores_and_memory(folder: Path) -> None:
    write_nodes(folder, "0-1,4", "", "2,6-7")
    (folder / "has_cpu").write_text("0,2")
    assert memory_nodes() == [MemoryNode((0, 1, 4), GIB), MemoryNode((2, 6, 7), GIB)]
    assert cores_of_processes(4) == [(0, 1, 4), (2, 6, 7)] * 2


def test_only_cores_that_the_process_may_use_count(folder: Path, cores: set[int]) -> None:
    write_nodes(folder, "0-3", "4-7")
    cores.difference_update({0, 1})
    assert [node.cores for node in memory_nodes()] == [(2, 3), (4, 5, 6, 7)]
    assert cores_of_processes(2) == [None, None], "the nodes are unequal"
    cores.difference_update({2, 3})
    assert [node.cores for node in memory_nodes()] == [(4, 5, 6, 7)]
    assert cores_of_processes(2) == [None, None], "all processes are on one node"


@pytest.mark.usefixtures("cores")
def test_processes_that_cannot_share_nodes_evenly_get_all_cores(folder: Path) -> None:
    write_nodes(folder, "0-3", "4-7")
    assert cores_of_processes(3) == [None] * 3
    assert cores_of_processes(1) == [None]


@pytest.mark.usefixtures("cores")
def test_a_system_that_does_not_say_has_no_nodes(folder: Path) -> None:
    assert memory_nodes() == []
    (folder / "node0").mkdir()
    assert memory_nodes() == []
    assert cores_of_processes(2) == [None, None]
