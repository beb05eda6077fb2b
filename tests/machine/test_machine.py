"""Detection of the machine, within a container's limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from znni.core.errors import InvalidInput
from znni.core.text import in_units
from znni.machine import control_groups, processor
from znni.machine.detect import AVAILABLE_SHARE, detect_host, detect_machine, steady
from znni.machine.machine import Device, Machine, limited

GIB = 2**30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty tree of control groups."""
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def write(groups: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{text}\n")


def test_this_machine() -> None:
    host = detect_machine().host
    assert host.kind == "cpu"
    assert host.name
    assert host.threads >= 1
    assert host.memory > 0
    assert host.flops > 1e9
    assert host.bandwidth > 1e9


@pytest.mark.parametrize(
    ("maker", "pairs"), [("GenuineIntel", 0.5), ("AuthenticAMD", 1.0), ("", 1.0)]
)
def test_products_of_bfloat16_are_those_of_the_processors_maker(
    maker: str, pairs: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.processor", lambda: "")
    if maker:
        core = f"processor\t: 0\nvendor_id\t: {maker}\nmodel name\t: Some Processor\n\n"
        processor.INFO.write_text(2 * core)
    host = detect_machine().host
    assert host.pairs_per_cycle == pairs
    assert host.name == "Some Processor" if maker else host.name


def test_limits_asked_for() -> None:
    host = detect_machine(ram=GIB, threads=3).host
    assert (host.memory, host.threads) == (GIB, 3)
    assert detect_machine(threads=999).host.flops == detect_machine().host.flops
    for ram, threads in ((0, 1), (-1, 1), (GIB, 0), (GIB, -2)):
        with pytest.raises(InvalidInput):
            detect_machine(ram, threads)


def test_part_of_a_machine() -> None:
    whole = Machine(Device("cpu", "eight", 8 * GIB, 8, flops=8e11, bandwidth=4e11), absent=True)
    assert limited(whole, None, None) == whole
    more = limited(whole, "12GiB", 16).host
    assert (more.memory, more.threads) == (12 * GIB, 16)
    assert (more.flops, more.bandwidth) == (8e11, 4e11)
    one = limited(whole, None, 1)
    assert one.absent
    assert (one.host.memory, one.host.threads) == (8 * GIB, 1)
    assert (one.host.flops, one.host.bandwidth) == pytest.approx((1e11, 1e11))
    with pytest.raises(InvalidInput, match=r"0 threads cannot compute; give at least 1 \(of 8\)"):
        limited(whole, None, 0)


def test_no_container(groups: Path) -> None:
    assert control_groups.memory_left() is None
    assert control_groups.processors() is None
    write(groups, {"membership": "0::/", "memory.max": "max", "memory.current": 5})
    write(groups, {"cpu.max": "max 100000"})
    assert control_groups.memory_left() is None
    assert control_groups.processors() is None


def test_version_2(groups: Path) -> None:
    write(groups, {"membership": "0::/outer/inner"})
    write(groups, {"outer/memory.max": 4 * GIB, "outer/memory.current": 3 * GIB})
    write(groups, {"outer/memory.stat": f"anon 5\ninactive_file {GIB}\nslab 7"})
    assert control_groups.memory_left() == 2 * GIB  # cached files give way
    write(groups, {"outer/inner/memory.max": GIB, "outer/inner/memory.current": GIB // 4})
    assert control_groups.memory_left() == GIB - GIB // 4
    write(groups, {"outer/inner/memory.current": 2 * GIB})
    assert control_groups.memory_left() == 0
    write(groups, {"outer/inner/cpu.max": "150000 100000", "outer/cpu.max": "max 100000"})
    assert control_groups.processors() == 1.5


def test_version_1(groups: Path) -> None:
    write(groups, {"membership": "5:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/\n0::/"})
    write(groups, {"memory/memory.limit_in_bytes": 2**63 - 4096, "memory/memory.usage_in_bytes": 0})
    write(groups, {"memory/box/memory.limit_in_bytes": GIB})
    write(groups, {"memory/box/memory.usage_in_bytes": GIB // 2})
    write(groups, {"memory/box/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}"})
    assert control_groups.memory_left() == GIB - GIB // 2 + GIB // 4
    write(groups, {"cpu/box/cpu.cfs_quota_us": -1, "cpu/box/cpu.cfs_period_us": 100000})
    assert control_groups.processors() is None
    write(groups, {"cpu/box/cpu.cfs_quota_us": 50000})
    assert control_groups.processors() == 0.5


def test_a_process_has_the_cores_of_its_set(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert groups.is_dir()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1, 4, 5}, raising=False)
    assert detect_host().host.threads == 3
    assert detect_host(threads=2).host.threads == 2
    assert detect_host(threads=8).host.threads == 8


def test_a_container_is_all_there_is(groups: Path) -> None:
    write(groups, {"membership": "0::/", "memory.max": 100 * 2**20, "memory.current": 0})
    write(groups, {"cpu.max": "10000 100000"})
    host = detect_machine().host
    assert host.memory == steady(100 * 2**20 * AVAILABLE_SHARE)
    assert host.threads == 1


def test_the_memory_of_a_machine_stays_the_same_if_some_megabytes_come_and_go() -> None:
    for available in (100 << 20, 3 << 30, 23 << 30, 700 << 30):
        memory = steady(available)
        assert 0.93 * available < memory <= available
        assert steady(memory + available // 100) == memory
    assert steady(0) == 0
    assert steady(17) == 17


def test_more_memory_than_there_is_costs_one_warning(
    groups: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert groups.is_dir()
    beyond = 2**60 + 12345
    for _ in range(2):
        assert detect_host(ram=beyond).host.memory == beyond
        assert detect_machine(ram=beyond).host.memory == beyond
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"the {in_units(beyond)} of ram (--ram) are more than the ")
    assert said.endswith(" of this machine; a run may be killed")
    detect_host(ram=2**20)
    assert len(caplog.records) == 1
