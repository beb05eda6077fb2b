"""If memory runs out, a run goes on with less and computes only what is not yet written."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from command_line import LONG_VOLUME, attributes, read_main, voxels
from fakes import Watched, fake_catalogue
from hypothesis import given
from hypothesis import strategies as st
from paths import SUPPORT

import znni
from znni.core.errors import RunFailed
from znni.core.shapes import Box, Vec3
from znni.engine.tiles import Job, Remaining
from znni.machine import arena
from znni.network.layers import Operation
from znni.network.weights import Float32
from znni.plans.plan import Plan
from znni.plans.primitive import convolved
from znni.volumes.formats.hdf5.output import Hdf5Output

SCRIPT = SUPPORT / "short_of_memory.py"
TIGHT = "512.45MiB"  # all but a part of one is for the process
sizes = st.tuples(*[st.integers(1, 9)] * 3).map(lambda size: Vec3(*size))


calls: list[str] = []
fails: Callable[[int], bool]
written: list[Box] = []


def maybe_fail(layer: Operation) -> None:
    calls.append(layer.name)
    if fails(len(calls)):
        raise MemoryError


class Noting(Hdf5Output):
    """Notes what is written."""

    def write(self, box: Box, values: Any) -> None:
        super().write(box, values)
        written.append(box)


pytestmark = pytest.mark.usefixtures("long_case")


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and what is written, of runs over the long case."""
    catalogue = fake_catalogue(Watched("conv", convolved, flops=100.0, before=maybe_fail))
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: catalogue)
    monkeypatch.setattr("znni.volumes.formats.hdf5.writer.Hdf5Output", Noting)
    calls.clear()
    written.clear()
    fail_at()


def fail_at(*numbers: int) -> None:
    global fails  # noqa: PLW0603
    calls.clear()
    fails = numbers.__contains__


def uninterrupted() -> Float32:
    return znni.Inferer("tiny.yaml")(voxels(LONG_VOLUME))


def job_of(output: Vec3) -> Job:
    """Return a sliding network's job that gives every voxel of a volume."""
    return Job(output, Vec3(0, 0, 0), output, Vec3(0, 0, 0), "reflect")


@given(sizes, st.lists(st.tuples(sizes, st.integers(0, 30)), max_size=4), sizes)
def test_what_remains_is_covered_once_by_patches_of_any_size(
    output: Vec3, parts: list[tuple[Vec3, int]], last: Vec3
) -> None:
    remaining = Remaining(job_of(output))
    count = np.zeros(output, int)
    for patch, most in [*parts, (last, output.volume)]:
        for tile in list(remaining.tiles(patch))[:most]:
            assert tile.written.within(tile.computed)
            assert tile.computed.size == patch
            count[tile.written.slices] += 1
            remaining.take_off(tile.written)
            assert remaining.voxels == (count == 0).sum()
    assert (count == 1).all()


@pytest.mark.parametrize("given", [False, True])
def test_a_run_goes_on_with_a_smaller_plan(given: bool, caplog: pytest.LogCaptureFixture) -> None:
    expected = uninterrupted()
    plan = znni.plan("tiny.yaml", LONG_VOLUME, ram=TIGHT, input_itemsize=1) if given else None
    fail_at(5, 8)
    done: list[int] = []
    report = znni.infer(
        "volume.h5",
        "tiny.yaml",
        "out.h5",
        ram=None if given else TIGHT,
        plan=plan,
        progress=lambda voxels, _all: done.append(voxels),
    )
    np.testing.assert_allclose(read_main("out.h5"), expected, atol=1e-6)
    count = np.zeros(expected.shape[1:], int)
    for box in written:
        count[box.slices] += 1
    assert (count == 1).all(), "what was finished is not computed again"
    assert written[0].size.within(report.plan.patch)
    assert done == sorted(done)
    assert done[-1] == count.size
    taken = [plan.memory.total for plan in (report.plan, *report.fallbacks)]
    assert len(taken) == 3
    assert taken == sorted(taken, reverse=True)
    assert len(set(taken)) == 3
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno == WARNING]
    assert len(warnings) == 2
    assert all("memory ran out under a plan of 51" in said for said in warnings)
    assert "memory ran out 2 times" in str(report)
    noted = attributes()
    assert noted["fallbacks"] == 2
    assert Plan.from_json(noted["plan"]) == report.fallbacks[-1]
    assert noted["predicted_seconds"] == report.plan.seconds
    assert noted["host_layers_seconds"] == report.time.busy.host_layers > 0


@pytest.mark.slow
def test_a_run_that_nothing_fits_keeps_its_finished_blocks() -> None:
    global fails  # noqa: PLW0603
    fails = lambda call: call > 12  # noqa: E731
    with pytest.raises(
        RunFailed, match=r"memory ran out under a plan of .* none takes less"
    ) as end:
        znni.infer("volume.h5", "tiny.yaml", "out.h5", ram=TIGHT)
    assert written
    assert "out.h5.partial holds" in end.value.__notes__[0]
    assert not Path("out.h5").exists()


def test_a_block_that_cannot_be_read_is_read_in_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = uninterrupted()
    blocks: list[Vec3] = []

    def read(source: Any, box: Box) -> Any:
        blocks.append(box.size)
        if box.size.volume == max(size.volume for size in blocks) and len(blocks) > 2:
            raise MemoryError
        return source._array[(np.newaxis, *box.slices)]

    monkeypatch.setattr("znni.volumes.array.ArrayVolume.read", read)
    out = np.zeros(expected.shape, np.float32)
    report = znni.infer(voxels(LONG_VOLUME), "tiny.yaml", out, ram=TIGHT)
    assert report.fallbacks
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_an_inferer_keeps_the_plan_that_memory_sufficed_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = uninterrupted()
    inferer = znni.Inferer("tiny.yaml", ram="600MiB")
    fail_at(2)
    np.testing.assert_allclose(inferer(voxels(LONG_VOLUME)), expected, atol=1e-6)
    assert caplog.text.count("memory ran out") == 1
    np.testing.assert_allclose(inferer(voxels(LONG_VOLUME)), expected, atol=1e-6)
    assert caplog.text.count("memory ran out") == 1


def test_a_finished_run_gives_its_memory_back_without_a_search_for_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search takes long where a caller has many objects."""
    made: WeakSet[arena.Arena] = WeakSet()
    begin, most = arena.Arena.__init__, 0

    def noting(self: arena.Arena, *given: Any, **named: Any) -> None:
        nonlocal most
        begin(self, *given, **named)
        made.add(self)
        most = max(most, len(made))

    monkeypatch.setattr(arena.Arena, "__init__", noting)
    gc.disable()
    try:
        znni.infer("volume.h5", "tiny.yaml", "out.h5", ram=TIGHT)
        assert len(made) == 0 < most
    finally:
        gc.enable()


def test_pages_that_cannot_be_had_are_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot be had: Cannot allocate memory"):
        arena.map_pages(2**62)


@pytest.mark.slow
@pytest.mark.parametrize(("room", "falls_back"), [(256, True), (2000, False)])
def test_a_process_that_is_given_less_than_promised(room: int, falls_back: bool) -> None:
    expected = uninterrupted()
    command = [sys.executable, SCRIPT, str(room), "infer", "volume.h5", "--net", "tiny.yaml"]
    done = subprocess.run(
        [*command, "--out", "out.h5", "--ram", "2GiB", "--threads", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("memory ran out under a plan of 1.00 GiB: going on" in done.stderr) == falls_back
    np.testing.assert_allclose(read_main("out.h5"), expected, atol=1e-6)


boxes = st.tuples(sizes, sizes).map(lambda pair: Box(pair[0], pair[0] + pair[1]))


@given(boxes, boxes)
def test_what_a_box_has_not_in_common_with_another(one: Box, other: Box) -> None:
    count = np.zeros(Vec3(18, 18, 18), int)
    for part in one.without(other):
        assert min(part.size) > 0
        count[part.slices] += 1
    if common := one.intersection(other):
        assert common.within(one)
        assert common.within(other)
        count[common.slices] += 1
    count[one.slices] -= 1
    assert not count.any()


@given(boxes, sizes)
def test_a_box_is_cut_where_a_grid_cuts_it(box: Box, stride: Vec3) -> None:
    count = np.zeros(Vec3(18, 18, 18), int)
    for part in box.cut(stride):
        assert part.start // stride == (part.stop - 1) // stride
        count[part.slices] += 1
    count[box.slices] -= 1
    assert not count.any()


@given(sizes, sizes, st.integers(0, 60), st.lists(st.integers(0, 60), max_size=3))
def test_patches_lie_where_those_of_a_whole_run_lie(
    output: Vec3, patch: Vec3, most: int, lost: list[int]
) -> None:
    """Wherever it stopped, and whichever of its blocks were damaged since."""
    whole = {tile.written: tile.computed for tile in Remaining(job_of(output)).tiles(patch)}
    written = list(whole)[:most]
    damaged = {written[index] for index in lost if index < len(written)}
    history = [(box, True) for box in written] + [(box, False) for box in damaged]
    rest = {tile.written: tile.computed for tile in Remaining(job_of(output), history).tiles(patch)}
    assert rest == {box: whole[box] for box in whole if box in damaged or box not in written}
