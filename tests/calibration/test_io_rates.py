"""Measured times of a run's work outside its layers are kept, printed, and used by plans."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from math import inf
from typing import get_args

import pytest
from fake_stages import stage_in
from fakes import machine

import znni
from planner.overhead import TURN_SECONDS, TURNS
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.io_rates import (
    REPEATS,
    Computing,
    _Blocks,
    _in_turn,
    calibrate_handling,
    measure_handling,
)
from znni.calibration.memory_rates import cold_seconds
from znni.calibration.overhead_figures import COLD_SECONDS, handling_times, run_overhead
from znni.core.errors import InvalidInput
from znni.core.option_types import Codec, Form, OutputType
from znni.core.shapes import Box, Vec3
from znni.engine.stages.layers import LayersModel
from znni.engine.stages.read import ReadModel
from znni.engine.stages.write import WriteModel
from znni.inference.plan_checks import checked_plan
from znni.machine.handling_times import (
    READ,
    ChunkTimes,
    HandlingTimes,
    SecondsPerValue,
)
from znni.network.layers import Conv
from znni.network.network import Network
from znni.plans.plan import Plan
from znni.plans.stored_values import Stored

NETWORK = Network.chain("one", 1, (Conv("conv", 1, 2, Vec3(3, 3, 3), "relu"),))
TIMES = HandlingTimes(
    touched=2e-9,
    placed=3e-9,
    read={size: SecondsPerValue(size * 1e-8, size * 4e-9) for size in READ},
    written={
        dtype: SecondsPerValue(number * 1e-7, number * 6e-8)
        for number, dtype in enumerate(get_args(OutputType), 1)
    },
    cold=1.5e-9,
    chunks=ChunkTimes({"hdf5": 1e-4, "zarr": 2e-4}, {"zstd": 1e-9}, file=3e-4),
)


pytestmark = pytest.mark.usefixtures("database", "fake_primitives")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.calibration.io_rates.measure_handling", lambda _threads: TIMES)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Provide a virtual machine of which nothing is warm, and the bytes that are noted."""
    noted: list[int] = []
    monkeypatch.setattr("znni.calibration.memory_rates.warm_bytes", lambda: 2**23)
    monkeypatch.setattr("znni.calibration.memory_rates.note_warm", noted.append)
    monkeypatch.setattr("znni.calibration.memory_rates.COLD_BYTES", 2**22)
    monkeypatch.setattr("znni.calibration.memory_rates.COLD_STEP", 2**20)
    monkeypatch.setattr("znni.calibration.memory_rates.REST_SECONDS", 0.0)
    return noted


@pytest.mark.usefixtures("virtual")
@pytest.mark.parametrize("gives_back", [True, False])
def test_the_slower_half_of_what_may_be_cold_counts(
    monkeypatch: pytest.MonkeyPatch, gives_back: bool
) -> None:
    """Other programs have freed some of it just before, and the host takes that back."""
    rested, took = list[float](), iter([9.0] * 8 + [0.1, 2.0, 0.1, 4.0])
    monkeypatch.setattr("znni.calibration.memory_rates.gives_pages_back", lambda: gives_back)
    monkeypatch.setattr("znni.calibration.memory_rates.time.sleep", rested.append)
    monkeypatch.setattr("znni.calibration.memory_rates._extra_of_first", lambda _: next(took))
    assert cold_seconds() == 3.0 / 2**20
    assert rested == [0.0] * gives_back


@pytest.mark.slow
def test_all_is_measured(virtual: list[int]) -> None:
    found = measure_handling(2, Vec3(16, 16, 16))
    assert virtual == [2**23 + 2**22]  # what is warm was taken first
    rates = found.rates()
    assert HandlingTimes.of_rates(rates) == found
    assert all(0 < seconds < 0.1 for seconds in rates.values())
    assert set(found.chunks.chunk) == set(get_args(Form))
    assert set(found.chunks.decoded) == set(get_args(Codec))
    lines = str(found).splitlines()
    assert len(lines) == 3 + len(found.read) + len(found.written) + 7
    assert lines[0].split()[:3] == ["memory", "touched", "first"]
    assert lines[1].split()[:3] == ["memory", "never", "touched"]


@pytest.mark.slow
def test_cold_memory_is_not_measured_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for warm in (inf, 2.0**60):  # not virtual; more than can be taken
        monkeypatch.setattr("znni.calibration.memory_rates.warm_bytes", lambda warm=warm: warm)
        found = measure_handling(2, Vec3(16, 16, 16))
        assert found.cold is None
        assert HandlingTimes.of_rates(found.rates()) == found
        assert "never touched" not in str(found)
        overhead = run_overhead(machine(), Stored("uint8", 2), found)
        assert overhead.once.cold == COLD_SECONDS


@pytest.mark.usefixtures("quick")
def test_the_latest_are_kept_by_their_median_until_they_are_forgotten(
    database: CostDatabase,
) -> None:
    here = Conditions.of(machine().host)
    assert database.rates(here) == {}
    for slower in (9, 9, 9, 2, 1, 1, 4, 1):
        database.add_rates(here, {"touched": slower * 1e-9})
    assert database.rates(here) == {"touched": 1e-9}
    assert database.rates(here._replace(threads=here.threads + 1)) == {}
    assert calibrate_handling(machine(), forget=True) == TIMES
    database.forget_rates(here)
    assert handling_times(machine(), "measured") is None


def test_a_file_from_before_there_were_rates_has_none(database: CostDatabase) -> None:
    import sqlite3

    here = Conditions.of(machine().host)
    database.add_rates(here, {"touched": 1e-9})
    with closing(sqlite3.connect(database.path)) as connection, connection:
        connection.execute("DROP TABLE rates")
    assert database.rates(here) == {}
    database.add_rates(here, {"touched": 2e-9})
    assert database.rates(here) == {"touched": 2e-9}


@pytest.mark.slow_cases
@pytest.mark.parametrize("missing", ["zarr", "tifffile"])
def test_formats_are_not_measured_without_their_libraries(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "znni.calibration.io_rates.find_spec", lambda name: None if name == missing else object()
    )
    found = measure_handling(2, Vec3(16, 16, 16))
    assert set(found.chunks.decoded) == {"gzip"} | ({"zstd"} if missing == "tifffile" else set())
    assert (found.chunks.file is None) == (missing == "zarr")
    assert HandlingTimes.of_rates(found.rates()) == found


@pytest.mark.usefixtures("quick")
def test_rates_of_older_versions_that_mean_something_else_are_not_used(
    database: CostDatabase,
) -> None:
    """Reading was once measured with chunks, with mapping, and without threads that compute."""
    for now, then in (("value", "read"), ("value", "plain"), ("beside layers", "working")):
        older = {name.replace(now, then): seconds for name, seconds in TIMES.rates().items()}
        database.add_rates(Conditions.of(machine().host), older)
        assert handling_times(machine(), "measured") is None
        database.forget_rates(Conditions.of(machine().host))
    calibrate_handling(machine(), forget=False)
    assert handling_times(machine(), "measured") == TIMES


@pytest.mark.usefixtures("quick")
def test_they_are_of_this_machine_and_of_measured_costs(database: CostDatabase) -> None:
    calibrate_handling(machine(), forget=False)
    assert handling_times(machine(), "auto") == handling_times(machine(), "measured") == TIMES
    assert handling_times(machine(), "built-in") is None
    assert handling_times(replace(machine(), absent=True), "auto") is None
    database.path.write_text("damaged" * 1000)
    assert handling_times(machine(), "auto") is None
    with pytest.raises(InvalidInput, match="measured costs cannot be read"):
        handling_times(machine(), "measured")


def test_what_is_measured_takes_the_place_of_nominal_rates() -> None:
    host = replace(machine(), host=replace(machine().host, threads=4))
    nominal = run_overhead(host, Stored("uint8", 2)).once
    found = run_overhead(host, Stored("uint8", 2), TIMES)
    read, write = stage_in(found, ReadModel), stage_in(found, WriteModel)
    written = TIMES.written["uint8"]
    assert (found.once.touched, stage_in(found, LayersModel).placed) == (2e-9, 3e-9)
    assert (read.value, write.value) == (2e-8, written.seconds)
    assert read.lost_value == pytest.approx(8e-9 / 4)
    assert write.lost_value == pytest.approx(written.working / 4)
    assert found.once.cold == 1.5e-9
    assert (found.once.building, found.once.resident) == (nominal.building, nominal.resident)


def test_plans_are_made_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(plan: Plan) -> float:
        """Return the seconds to read one voxel."""
        return plan.time.patch.reading / plan.input_patch.volume

    before = znni.plan(NETWORK, (20, 30, 40), threads=1)
    assert reading(before) < TIMES.read[4].seconds
    monkeypatch.setattr("znni.inference.planning.handling_times", lambda *_: TIMES)
    for plan in (znni.plan(NETWORK, (20, 30, 40), threads=1), checked_plan(before, NETWORK)):
        assert reading(plan) == pytest.approx(TIMES.read[4].seconds)
        lost = TIMES.read[4].working * plan.input_patch.volume  # to layers, on the only core
        out = plan.network.out_features * plan.patch.volume * TIMES.written["float32"].working
        beside = plan.time.beside  # each works beside the other, until one is done
        assert beside.reading == pytest.approx(TURN_SECONDS + TURNS * (lost + min(lost, out)))
        assert beside.writing == pytest.approx(TURN_SECONDS + TURNS * (out + min(lost, out)))


def test_differences_are_those_of_blocks_that_were_handled_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other programs may slow down both, from one second to the next."""

    class Counted:
        """Counts three units of a block of chunks, two of another, more and more of each."""

        def __init__(self, _threads: int) -> None:
            self.others = 0.0

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *_: object) -> None:
            self.others = handled[-1][0] + 10.0 * (len(handled) // 4)

    handled: list[tuple[int, Box]] = []
    boxes = list(Box(Vec3(0, 0, 0), Vec3(2 * REPEATS, 1, 1)).cut(Vec3(1, 1, 1)))

    def work(units: int) -> _Blocks:
        return _Blocks(boxes, lambda box: handled.append((units, box)))

    monkeypatch.setattr("znni.calibration.io_rates.Computing", Counted)
    taken = _in_turn({"chunks": work(3), "whole": work(2)}, 2)
    assert taken["chunks"].usual.working > 20
    assert taken["chunks"].more_than(taken["whole"]) < 3
    for units in (2, 3):
        assert [box for mine, box in handled if mine == units] == boxes


def test_other_threads_are_told_from_those_that_compute_beside_them() -> None:
    """Calibration counts what a block takes beside layers, and not what these take."""

    def work(seconds: float) -> None:
        began = time.thread_time()
        while time.thread_time() - began < seconds:
            pass

    found = []
    for seconds in (0.0, 0.3):
        with Computing(2) as computing:
            work(seconds)
            time.sleep(0.1)  # the others go on
        found.append(computing.others)
    assert 0 < found[0] < 0.1
    assert 0.3 <= found[1] < 0.4
