"""The time to handle blocks follows their types, the storage and the cores."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from fakes import gpu, machine

import znni
from planner.overhead import Load, OverheadSeconds
from znni.calibration.overhead_figures import run_overhead
from znni.core.errors import InvalidInput
from znni.core.options import Codec, PackedInput, Stored
from znni.core.shapes import Vec3
from znni.inference.planning import checked_plan
from znni.machine.machine import DeviceKind, Storage
from znni.network.layers import Conv
from znni.network.network import Network
from znni.plans.job_seconds import Stage
from znni.plans.plan import Plan

NETWORK = Network.chain("one", 1, (Conv("conv", 1, 2, Vec3(3, 3, 3), "relu"),))

pytestmark = pytest.mark.usefixtures("fake_primitives")


@pytest.fixture
def plan() -> Plan:
    return znni.plan(NETWORK, (20, 30, 40), threads=1)


def handling(
    threads: int = 1, storage: Storage | None = None, itemsize: int = 4
) -> OverheadSeconds:
    host = replace(machine().host, threads=threads, bandwidth=1e10 * threads ** (2 / 3))
    whole = replace(machine(), host=host, storage=storage or Storage())
    return run_overhead(whole, Stored(input_itemsize=itemsize)).handling


def test_fewer_bytes_take_less_time() -> None:
    small, large = handling(itemsize=1), handling(itemsize=8)
    assert 0 < small.voxel_in < large.voxel_in
    assert 0 < small.lost_in < large.lost_in
    assert small.voxel_out == large.voxel_out


def test_compression_takes_the_time_of_all_threads() -> None:
    plain, zstd, gzip = (
        run_overhead(machine(), Stored("float32", compression=how)).handling
        for how in ("none", "zstd", "gzip")
    )
    assert plain == run_overhead(machine()).handling
    assert 0 < zstd.voxel_out - plain.voxel_out < gzip.voxel_out - plain.voxel_out
    assert gzip.lost_out - plain.lost_out == pytest.approx(gzip.voxel_out - plain.voxel_out)
    small = run_overhead(machine(), Stored("uint8", compression="gzip")).handling
    few = run_overhead(machine(), Stored("uint8")).handling
    taken = gzip.voxel_out - plain.voxel_out
    assert small.voxel_out - few.voxel_out == pytest.approx(taken / 4)
    labels = Stored(label_maps=1)
    assert run_overhead(machine(), replace(labels, compression="gzip")) == run_overhead(
        machine(), labels
    )


def test_storage_keeps_those_waiting_who_read_and_write_and_nobody_else() -> None:
    usual, slow = handling(), handling(storage=Storage(read=1e6, write=2e6))
    assert slow.voxel_in == pytest.approx(4 / 1e6, rel=1e-2)
    assert slow.voxel_out == pytest.approx(4 / 2e6, rel=1e-2)
    assert (slow.lost_in, slow.lost_out) == (usual.lost_in, usual.lost_out)


def test_what_goes_to_a_gpu_and_back_goes_over_its_link() -> None:
    host = replace(machine(), host=replace(machine().host, bandwidth=1e10))
    slow, quick = (
        run_overhead(replace(host, gpus=(replace(gpu(), link=link),)), Stored("uint8")).handling
        for link in (1e9, 1e11)
    )
    assert slow.handed == pytest.approx(1e-9)
    assert quick.handed == pytest.approx(1e-11)
    assert slow.brought - slow.handed == pytest.approx(quick.brought - quick.handed)
    assert slow.returned - quick.returned == pytest.approx(1e-9 - 1e-11)
    assert slow.pinned == quick.pinned > 0
    assert handling().handed == 0


def test_more_cores_lose_less_each() -> None:
    one, eight = handling(threads=1), handling(threads=8)
    assert eight.voxel_in == pytest.approx(one.voxel_in)
    assert eight.lost_in == pytest.approx(one.lost_in / 8)
    assert eight.resident == pytest.approx(one.resident / 4)


def test_a_plan_has_the_time_of_the_types_that_it_is_run_with(plan: Plan) -> None:
    run = checked_plan(plan, NETWORK, stored=Stored("uint8", input_itemsize=1))
    assert run.time.patch.reading < plan.time.patch.reading
    assert run.time.patch.writing < plan.time.patch.writing
    assert run.time.building == plan.time.building
    assert checked_plan(plan, NETWORK) == plan


@pytest.mark.parametrize("name", ["building", "warming", *get_args(Stage)])
@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(plan: Plan, name: str, seconds: float) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    time = plan.time
    if hasattr(time, name):
        time = replace(time, **{name: seconds})
    else:
        time = replace(time, patch=replace(time.patch, **{name: seconds}))
    wrong = replace(plan, time=time)
    with pytest.raises(InvalidInput, match="not a plan"):
        Plan.from_json(wrong.to_json())


def test_input_is_decoded_in_whole_chunks() -> None:
    size = Vec3(100, 100, 100)

    def reading(packed: PackedInput | None, itemsize: int = 1) -> float:
        overhead = run_overhead(machine(), Stored("uint8", itemsize, input_packed=packed))
        loads: dict[DeviceKind, Load] = {"cpu": Load(1.0, 0, 0)}
        return overhead.time_of_run(NETWORK, Vec3(18, 18, 18), loads).patch.reading

    def decoding(codec: Codec, chunk: int, itemsize: int = 1) -> float:
        packed = PackedInput(codec, Vec3.of(chunk), size)
        return reading(packed, itemsize) - reading(None, itemsize)

    one = decoding("gzip", 1)
    assert 0 < decoding("zstd", 1) < one
    assert decoding("gzip", 1, 2) == pytest.approx(2 * one)
    assert decoding("gzip", 21) == pytest.approx(8 * one)  # blocks of 20 overlap 40 voxels an axis
    assert decoding("gzip", 100) == pytest.approx(125 * one)  # the whole volume


@pytest.mark.parametrize(("device", "workers"), [("cpu", 1), ("gpu", 1), ("gpu", 2)])
def test_a_chunk_larger_than_a_block_counts_as_memory(
    device: DeviceKind, workers: int, plan: Plan
) -> None:
    """A second copy of the block as it is stored is declared anyway, for smaller chunks."""
    there = replace(machine(), gpus=(gpu(),) * workers, used_gpus=workers)

    def blocks(chunk: int) -> int:
        overhead = run_overhead(there, Stored(input_itemsize=2, input_chunk=chunk))
        return overhead.of_host(NETWORK, Vec3(18, 18, 18), device).blocks

    values = NETWORK.in_features * 20**3
    assert blocks(2 * values) == blocks(0)
    assert blocks(2 * values + 100) == blocks(0) + 100 * workers
    large = Stored(input_chunk=2**30)
    assert checked_plan(plan, NETWORK, stored=large).memory.blocks > 2**30 > plan.memory.blocks


def test_one_thread_decodes_tiff() -> None:
    host = replace(machine().host, threads=4)
    for codec, at_once in {"gzip": 4, "zstd": 4, "deflate": 1}.items():
        packed = PackedInput(codec, Vec3(64, 64, 64), Vec3(100, 100, 100))  # type: ignore[arg-type]
        found = run_overhead(replace(machine(), host=host), Stored(input_packed=packed)).handling
        assert found.unpacked * at_once == pytest.approx(4 * found.lost_unpacked)
