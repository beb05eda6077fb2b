"""The time to handle blocks follows their types, the storage and the cores."""

from __future__ import annotations

from dataclasses import replace
from mmap import PAGESIZE
from typing import Any, get_args

import pytest
from fake_stages import host_blocks, stage, stage_in, time_of
from fakes import gpu, machine

import znni
from planner.overhead import TURN_SECONDS, TURNS, Load
from znni.calibration.overhead_figures import run_overhead
from znni.core.errors import InvalidInput
from znni.core.option_types import Codec, Form, OutputType
from znni.core.processors import DeviceKind
from znni.core.shapes import Vec3
from znni.engine.stages.convert import ConvertModel
from znni.engine.stages.download import DownloadModel
from znni.engine.stages.read import ReadModel
from znni.engine.stages.upload import UploadModel
from znni.engine.stages.write import WriteModel
from znni.engine.tiles import make_job
from znni.inference.plan_checks import checked_plan
from znni.machine.handling_times import ChunkTimes, HandlingTimes, SecondsPerValue
from znni.machine.machine import Machine, Storage
from znni.network.layers import Conv
from znni.network.network import Network
from znni.plans.job_seconds import ReportStage, SecondsAround, StageSeconds
from znni.plans.plan import Plan
from znni.plans.stored_values import InputChunks, Stored

NETWORK = Network.chain("one", 1, (Conv("conv", 1, 2, Vec3(3, 3, 3), "relu"),))
SIZE = Vec3(100, 100, 100)
JOB = make_job(NETWORK, SIZE, "valid", "reflect", None)

pytestmark = pytest.mark.usefixtures("fake_primitives")


@pytest.fixture
def plan() -> Plan:
    return znni.plan(NETWORK, (20, 30, 40), threads=1)


def here(threads: int = 1, storage: Storage | None = None) -> Machine:
    host = replace(machine().host, threads=threads, bandwidth=1e10 * threads ** (2 / 3))
    return replace(machine(), host=host, storage=storage or Storage())


def test_fewer_bytes_take_less_time() -> None:
    small, large = (run_overhead(here(), Stored(input_itemsize=it)) for it in (1, 8))
    assert 0 < stage_in(small, ReadModel).value < stage_in(large, ReadModel).value
    assert 0 < stage_in(small, ReadModel).lost_value < stage_in(large, ReadModel).lost_value
    assert stage_in(small, WriteModel) == stage_in(large, WriteModel)


def test_compression_takes_the_time_of_all_threads() -> None:
    plain, zstd, gzip = (
        stage(WriteModel, machine(), Stored("float32", compression=how))
        for how in ("none", "zstd", "gzip")
    )
    assert plain == stage(WriteModel, machine())
    assert 0 < zstd.value - plain.value < gzip.value - plain.value
    assert gzip.lost_value - plain.lost_value == pytest.approx(gzip.value - plain.value)
    small = stage(WriteModel, machine(), Stored("uint8", compression="gzip"))
    few = stage(WriteModel, machine(), Stored("uint8"))
    taken = gzip.value - plain.value
    assert small.value - few.value == pytest.approx(taken / 4)
    labels = Stored(label_maps=1)
    packed = replace(labels, compression="gzip")
    assert stage(WriteModel, machine(), packed) == stage(WriteModel, machine(), labels)


def test_storage_keeps_those_waiting_who_read_and_write_and_nobody_else() -> None:
    usual, slow = here(), here(storage=Storage(read=1e6, write=2e6))
    assert stage(ReadModel, slow).value == pytest.approx(4 / 1e6, rel=1e-2)
    assert stage(WriteModel, slow).value == pytest.approx(4 / 2e6, rel=1e-2)
    for kind in (ReadModel, WriteModel):
        assert stage(kind, slow).lost_value == stage(kind, usual).lost_value


def test_what_goes_to_a_gpu_and_back_goes_over_its_link() -> None:
    host = replace(machine(), host=replace(machine().host, bandwidth=1e10))
    slow, quick = (
        run_overhead(replace(host, gpus=(replace(gpu(), link=link),)), Stored("uint8"))
        for link in (1e9, 1e11)
    )
    slow_up, quick_up = (stage_in(it, UploadModel) for it in (slow, quick))
    assert slow_up.locked == pytest.approx(1e-9)
    assert quick_up.locked == pytest.approx(1e-11)
    assert slow_up.ordinary - slow_up.locked == pytest.approx(quick_up.ordinary - quick_up.locked)
    back = (stage_in(it, DownloadModel).byte for it in (slow, quick))
    assert next(back) - next(back) == pytest.approx(1e-9 - 1e-11)
    assert slow.once.pinned == quick.once.pinned > 0
    assert stage(UploadModel, here()).locked == 0


def test_more_cores_lose_less_each() -> None:
    one, eight = run_overhead(here(1)), run_overhead(here(8))
    lost, lost_by_eight = (stage_in(it, ReadModel).lost_value for it in (one, eight))
    assert lost_by_eight == pytest.approx(lost / 8)
    assert eight.once.resident == pytest.approx(one.once.resident / 4)


def test_threads_convert_together_while_others_wait_for_the_storage() -> None:
    """Reading takes as long as the slower of both. A file takes one write at a time."""
    memory = Storage(1e15, 1e15)
    for kind in (ReadModel, WriteModel):
        alone, eight, sixteen, many = (
            stage(kind, here(threads, memory)).value for threads in (1, 8, 16, 64)
        )
        assert eight == pytest.approx(alone / 8, rel=1e-3)
        assert many == pytest.approx(sixteen)
        assert many < alone / 15
    there, one = Storage(read=4e9, write=4e9), stage(ReadModel, here(1, memory)).value
    alone, many = (stage(ReadModel, here(threads, there)).value for threads in (1, 16))
    assert many == 1e-9 < alone == one
    written = stage(WriteModel, here(16, memory)).value + 1e-9
    assert stage(WriteModel, here(16, there)).value == pytest.approx(written)


def test_a_plan_has_the_time_of_the_types_that_it_is_run_with(plan: Plan) -> None:
    run = checked_plan(plan, NETWORK, stored=Stored("uint8", input_itemsize=1))
    assert run.time.patch.reading < plan.time.patch.reading
    assert run.time.patch.writing < plan.time.patch.writing
    assert run.time.building == plan.time.building
    assert checked_plan(plan, NETWORK) == plan


@pytest.mark.parametrize("name", ["building", "warming", *get_args(ReportStage)])
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


def measured_times() -> HandlingTimes:
    """Return measured times of which none but those of memory are above zero."""
    read = dict.fromkeys((1, 2, 4, 8), SecondsPerValue(0.0, 0.0))
    written = dict.fromkeys(get_args(OutputType), SecondsPerValue(0.0, 0.0))
    return HandlingTimes(1e-9, 1e-9, read, written)


def seconds(stored: Stored, patch: int = 18, measured: HandlingTimes | None = None) -> StageSeconds:
    loads: dict[DeviceKind, Load] = {"cpu": Load(1.0, 0, 0)}
    overhead = run_overhead(machine(), stored, measured)
    return time_of(overhead, NETWORK, Vec3.of(patch), loads).patch


def test_input_is_decoded_in_whole_chunks() -> None:
    def reading(chunks: InputChunks | None, itemsize: int = 1, patch: int = 18) -> float:
        return seconds(Stored("uint8", itemsize, input_chunks=chunks), patch).reading

    def decoding(codec: Codec, chunk: int, itemsize: int = 1, patch: int = 18) -> float:
        known = InputChunks("hdf5", codec, Vec3.of(chunk), SIZE)
        plain = replace(known, codec=None)
        return reading(known, itemsize, patch) - reading(plain, itemsize, patch)

    one = decoding("gzip", 10)
    assert 0 < decoding("zstd", 10) < one
    assert decoding("gzip", 10, 2) == pytest.approx(2 * one)
    # Blocks of 20 begin at 0, 18, 36, 54, 72 and 80: the last one ends where the volume does.
    whole = decoding("gzip", 100)
    assert one == pytest.approx(whole * ((2 + 3 + 3 + 3 + 3 + 2) / 6 / 10) ** 3)
    assert whole == pytest.approx(decoding("gzip", 5, patch=98))


@pytest.mark.parametrize(("device", "workers"), [("cpu", 1), ("gpu", 1), ("gpu", 2)])
def test_a_chunk_larger_than_a_block_counts_as_memory(
    device: DeviceKind, workers: int, plan: Plan
) -> None:
    """A second copy of the block as it is stored is declared anyway, for smaller chunks."""
    there = replace(machine(), gpus=(gpu(),) * workers, used_gpus=workers)

    def blocks(chunk: int) -> int:
        overhead = run_overhead(there, Stored(input_itemsize=2, input_chunk_bytes=chunk))
        return host_blocks(overhead, NETWORK, Vec3(18, 18, 18), device)

    values = NETWORK.in_features * 20**3
    assert blocks(2 * values) == blocks(0)
    assert blocks(2 * values + 100) == blocks(0) + 100 * workers
    large = Stored(input_chunk_bytes=2**30)
    assert checked_plan(plan, NETWORK, stored=large).memory.blocks > 2**30 > plan.memory.blocks


def test_each_chunk_takes_time_beside_its_values() -> None:
    def reading(form: Form, chunk: int) -> float:
        known = InputChunks(form, None, Vec3.of(chunk), SIZE)
        return seconds(Stored("uint8", 1, input_chunks=known), 98).reading

    plain = seconds(Stored("uint8", 1), 98).reading
    for form in ("hdf5", "zarr"):
        whole = reading(form, 100) - plain
        assert whole > 0
        assert reading(form, 10) - plain == pytest.approx(1000 * whole)
    assert reading("zarr", 10) > reading("hdf5", 10)


def test_a_narrow_block_of_a_mapped_file_takes_the_time_of_its_rows() -> None:
    def mapping(row: int, itemsize: int = 1, measured: HandlingTimes | None = None) -> float:
        known = InputChunks("mapped", None, Vec3(1, 1, row), Vec3(100, 100, row))
        with_rows, without = (
            seconds(Stored("uint8", itemsize, input_chunks=chunks), measured=measured)
            for chunks in (known, None)
        )
        return with_rows.reading - without.reading

    one = mapping(100)
    assert 0 < one < seconds(Stored("uint8", 1)).reading / 2
    assert mapping(600) == pytest.approx(6 * one)
    assert mapping(100, itemsize=4) == pytest.approx(4 * one)
    assert mapping(10**7) == mapping(2**16) == pytest.approx(2**16 / 100 * one)  # not the whole row
    chunks = ChunkTimes({"mapped": 3.0}, {})
    found = mapping(PAGESIZE // 2, measured=replace(measured_times(), chunks=chunks))
    assert found == pytest.approx(1.5 * 20**2 / machine().host.threads)


def test_each_file_of_the_output_takes_time() -> None:
    def writing(patch: int, **how: Any) -> float:
        one, many = (Stored("uint8", chunk_files=files, **how) for files in (False, True))
        return seconds(many, patch).writing - seconds(one, patch).writing

    one = writing(64)
    assert one > 0
    assert writing(96) == pytest.approx(8 * one)  # chunks of 48
    assert writing(131) == pytest.approx(27 * one)  # no divisor: chunks of 64
    assert writing(64, label_maps=1) == pytest.approx(one / NETWORK.out_features)


def test_threads_share_what_they_can() -> None:
    def times(form: Form, codec: Codec | None) -> tuple[float, float]:
        known = InputChunks(form, codec, Vec3(64, 64, 64), SIZE)
        host = replace(machine().host, threads=4)
        found = stage(ReadModel, replace(machine(), host=host), Stored(input_chunks=known))
        return found.chunk, 4 * found.lost_chunk

    for codec in (None, "gzip", "zstd"):
        taken, working = times("hdf5", codec)
        assert 4 * taken == pytest.approx(working)
    taken, working = times("zarr", "deflate")
    assert taken == pytest.approx(working)
    assert times("zarr", "zstd")[0] - times("zarr", None)[0] == pytest.approx(
        times("hdf5", "zstd")[0] - times("hdf5", None)[0]
    )


def test_chunks_that_go_from_thread_to_thread_come_later_beside_layers() -> None:
    def beside(form: Form, kind: DeviceKind = "cpu") -> float:
        known = InputChunks(form, None, Vec3(100, 100, 100), SIZE)
        found = run_overhead(machine(), Stored("uint8", 1, input_chunks=known))
        run = found.setting(NETWORK, (kind,))
        time = found.beside(run, found.counts(NETWORK, Vec3.of(98)))
        each, values = stage_in(found, ReadModel), NETWORK.in_features * SIZE.volume
        lost = TURN_SECONDS + TURNS * (values * each.lost_value + each.lost_chunk)
        return time.reading - lost if kind == "cpu" else time.reading

    written = TURNS * stage(WriteModel, machine(), Stored("uint8", 1)).lost_value
    read = beside("hdf5")
    assert 0 < read <= written * NETWORK.out_features * 98**3
    assert beside("zarr") > read + 1e-4
    assert beside("zarr", "gpu") == 0  # the cores are free


def test_the_host_converts_the_output_of_its_own_layers() -> None:
    """A GPU stores what it computes in the output's type."""
    overhead = run_overhead(machine(), Stored("uint8"))

    def writing(kind: DeviceKind) -> float:
        return time_of(overhead, NETWORK, Vec3.of(18), {kind: Load(1.0, 0, 0)}).patch.writing

    values = NETWORK.out_features * 18**3
    more = writing("cpu") - writing("gpu")
    each = stage_in(overhead, ConvertModel).value
    assert each > 0
    assert more == pytest.approx(values * each)
    assert (
        stage(ConvertModel, machine(), Stored("uint8"), measured_times()).value == 0
    )  # the measured time of writing includes it


def test_loading_a_library_and_coarser_resolutions_count(plan: Plan) -> None:
    def around(**how: Any) -> SecondsAround:
        found = checked_plan(plan, NETWORK, stored=Stored("uint8", **how), job=JOB)
        return found.time.around

    plain = around()
    assert around(loads_zarr=True).opening > plain.opening + 0.1
    assert around(loads_zarr=True).finishing == plain.finishing
    voxels = NETWORK.out_features * JOB.output.volume
    one = (around(coarser=True).finishing - plain.finishing) / voxels
    assert 0 < one < 1e-7
    labels = around(coarser=True, label_maps=1).finishing - plain.finishing
    assert labels == pytest.approx(one * JOB.output.volume)
    assert around(coarser=True).opening == plain.opening


def test_measured_chunks_take_the_place_of_nominal_ones() -> None:
    known = InputChunks("zarr", "zstd", Vec3(10, 10, 10), SIZE)
    stored = Stored("uint8", 1, input_chunks=known, chunk_files=True)
    none = measured_times()
    nominal, found = run_overhead(machine(), stored), run_overhead(machine(), stored, none)
    assert stage_in(found, ReadModel).chunk == stage_in(nominal, ReadModel).chunk
    assert stage_in(found, WriteModel).file == stage_in(nominal, WriteModel).file
    chunks = ChunkTimes({"zarr": 3.0}, {"zstd": 0.002}, 5.0)
    found = run_overhead(machine(), stored, replace(none, chunks=chunks))
    threads = machine().host.threads
    read, write = stage_in(found, ReadModel), stage_in(found, WriteModel)
    assert read.chunk == pytest.approx(3 + 2 / threads)
    assert read.lost_chunk == pytest.approx(5 / threads)
    assert (write.file, write.lost_file) == (5, 5 / threads)
