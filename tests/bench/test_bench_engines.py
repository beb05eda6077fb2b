"""Divisions of batches among cuDNN's engines: equal to trying all, measured by a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from gpu_layers import H200
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench import session
from bench.__main__ import app
from bench.ceilings import GpuCeilings
from bench.paper import engines
from bench.paper.divisions import (
    ALL,
    DIVISIONS,
    MIB,
    POWERS,
    WHOLE,
    Curve,
    Engine,
    front_of,
    least_seconds,
    own_seconds,
    powers_of_two,
    rows_of,
    shared_seconds,
    sizes_of,
)
from bench.paper.engines import NETWORKS, Curves, missing
from bench.record import Row, load
from bench.table import table
from znni.core.errors import InvalidInput
from znni.machine.cuda import LibraryFailed
from znni.machine.detect import detect_host
from znni.machine.machine import Machine
from znni.primitives.gpu.cudnn import graph

BATCH = 8
ENGINES = st.lists(
    st.builds(Engine, st.floats(0.5, 9.0), st.integers(0, 6).map(lambda mib: mib * MIB)),
    min_size=1,
    max_size=3,
).map(lambda engines: [*engines, Engine(20.0, 0)])  # one needs no workspace
CURVES = st.fixed_dictionaries(dict.fromkeys([*powers_of_two(BATCH), 3, 6], ENGINES))


def tried(curve: Curve, limit: int, sizes: list[int]) -> float:
    """Return the least seconds of all ways to divide the batch."""
    least = {
        size: min((it.seconds for it in curve[size] if it.workspace <= limit), default=inf)
        for size in sizes
    }
    ways = (
        way
        for count in range(1, BATCH + 1)
        for way in combinations_with_replacement(sizes, count)
        if sum(way) == BATCH
    )
    return min(sum(least[size] for size in way) for way in ways)


@given(CURVES, st.integers(0, 6))
def test_a_division_is_the_fastest_of_all(curve: Curve, mib: int) -> None:
    sizes = {WHOLE: [8], POWERS: [1, 2, 4, 8], ALL: [1, 2, 3, 4, 6, 8]}
    for division in DIVISIONS:
        assert sizes_of(curve, BATCH, division) == sizes[division]
        found = own_seconds(front_of(curve, BATCH, division), mib * MIB)
        assert found == pytest.approx(tried(curve, mib * MIB, sizes[division]))


@settings(max_examples=25)
@given(st.lists(CURVES, min_size=1, max_size=3), st.integers(0, 12), st.data())
def test_shared_workspace_is_the_fastest_of_all(
    curves: list[Curve], mib: int, data: st.DataObject
) -> None:
    times = [data.draw(st.integers(1, 3)) for _ in curves]
    limits = range(0, 7 * MIB, MIB)
    wanted = min(
        sum(
            n * least_seconds(it, BATCH, one, POWERS)
            for n, it, one in zip(times, curves, way, strict=True)
        )
        for way in product(limits, repeat=len(curves))
        if sum(n * one for n, one in zip(times, way, strict=True)) <= mib * MIB
    )
    fronts = [front_of(curve, BATCH, POWERS) for curve in curves]
    assert shared_seconds(fronts, times, mib * MIB) == pytest.approx(wanted)


def test_rows_of_a_network_gain_by_pieces_and_by_sharing() -> None:
    fast = {size: [Engine(0.1 * size, size * MIB), Engine(0.2 * size, 0)] for size in (1, 2, 4, 8)}
    rows = list(rows_of("AlexNet", BATCH, [fast] * 4, [1] * 4, [2 * MIB]))
    gains = {row["name"]: row["gain"] for row in rows}
    assert gains[f"{WHOLE}, each its own"] == 1
    assert gains[f"{WHOLE}, shared out"] == pytest.approx(8 / 7)
    assert gains[f"{POWERS}, each its own"] == pytest.approx(2)
    assert gains[f"{ALL}, shared out"] == pytest.approx(2)


def test_rows_are_of_what_was_measured_and_stays_within_the_limit() -> None:
    curve = {8: [Engine(1.0, 4 * MIB)]}
    tight, shared, enough, _ = rows_of("net", BATCH, [curve], [1], [MIB, 4 * MIB])
    assert "no engine" in tight["skipped"]
    assert "no engine" in shared["skipped"]
    assert (enough["name"], enough["seconds"]) == (f"{WHOLE}, each its own", 1.0)
    pieces = curve | {size: [Engine(1.0, 0)] for size in (1, 2, 4)}
    rows = list(rows_of("net", BATCH, [pieces], [1], [MIB]))
    assert [row.get("seconds") for row in rows] == [None, None, 2.0, 2.0, 2.0, 2.0]


# Seconds of an image and bytes of workspace for an image, of each engine that the stand-in has. It
# cannot build the second one, and cannot run the third one.
STAND_IN = [(3.0, 0), (0.0, 0), (0.0, 0), (1.0, MIB), (2.0, MIB // 2)]
BROKEN, FAILING = 1, 2


class Output:
    """Stand-in for a tensor of cuDNN that a graph makes."""

    def set_output(self, _value: object) -> Output:
        return self

    set_data_type = set_dim = set_stride = set_output


class Graph:
    """Stand-in for a graph of cuDNN: engines that compute nothing."""

    ran: ClassVar[list[int]] = []
    seconds = 0.0  # of the last run

    def __init__(self, **_types: object) -> None:
        self._images = 0

    def tensor(self, name: str, dim: list[int], **_layout: object) -> str:
        self._images = dim[0] if name == "in" else self._images
        return name

    def conv_fprop(self, **_about: object) -> Output:
        return Output()

    def validate(self) -> None:
        pass

    build_operation_graph = validate

    def create_execution_plans(self, _modes: list[object]) -> None:
        pass

    deselect_numeric_notes = create_execution_plans

    def get_execution_plan_count(self) -> int:
        return len(STAND_IN)

    def build_plan_at_index(self, index: int) -> None:
        if index == BROKEN:
            raise RuntimeError("not supported")

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return STAND_IN[index][1] * self._images

    def execute_plan_at_index(
        self, _addresses: object, _workspace: int, index: int, **_handle: object
    ) -> None:
        if index == FAILING:
            raise RuntimeError("execution failed")
        Graph.ran.append(index)
        Graph.seconds = STAND_IN[index][0] * self._images


class Names:
    """Stand-in for an enumeration of cuDNN."""

    def __getattr__(self, name: str) -> str:
        return name


CUDNN = SimpleNamespace(
    pygraph=Graph,
    create_handle=lambda: 0,
    set_stream=lambda _handle, _stream: None,
    data_type=Names(),
    heur_mode=Names(),
    numerical_note=Names(),
    cudnnGraphNotSupportedError=LibraryFailed,
)
CEILINGS = GpuCeilings("stand-in", 1e12, 1e11, 1e13)


@pytest.fixture
def gpu_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a GPU with cuDNN, whose clock shows the seconds of the engine that ran last."""

    def zeros(_shape: object, _dtype: object) -> Any:
        return SimpleNamespace(data=SimpleNamespace(ptr=0))

    there = SimpleNamespace(
        zeros=zeros,
        cuda=SimpleNamespace(
            Device=lambda: SimpleNamespace(id=0, mem_info=(1 << 40, 1 << 40)),
            Memory=lambda _nbytes: SimpleNamespace(ptr=0),
            get_current_stream=lambda: SimpleNamespace(ptr=0),
        ),
    )

    def seconds(run: Any) -> float:
        run()
        return Graph.seconds

    machine = Machine(detect_host().host, (H200,))
    for where, name, value in (
        (graph, "cupy", lambda: there),
        (graph, "cudnn", lambda: CUDNN),
        (graph, "seconds_on_device", seconds),
        (engines, "cupy", lambda: there),
        (session, "machine_with", lambda _device, _threads: machine),
        (session, "measure_gpu_ceilings", lambda: CEILINGS),
    ):
        monkeypatch.setattr(where, name, value)
    graph._handle.cache_clear()
    yield
    graph._handle.cache_clear()


def rows(tmp_path: Path, command: str) -> list[Row]:
    """Run a command, and return the rows that it saves."""
    out = tmp_path / "out.json"
    outcome = CliRunner().invoke(
        app, ["paper", "micro-batches", "--device", "gpu", *command.split(), "--out", str(out)]
    )
    assert outcome.exit_code == 0, outcome.output
    return load(out, "evaluations").rows


LAYER = "--kernel 3 --batch 8 --size 5 --features 2 --out-features 3 --workspace 2MiB"


@pytest.mark.usefixtures("gpu_here")
def test_all_engines_are_measured_and_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "curves.json"
    found = rows(tmp_path, f"{LAYER} --step 3 --curves {file}")
    curves = load(file, "engine-curves").rows
    assert [row["images"] for row in curves] == [8, 4, 2, 1, 6, 3]  # by importance
    assert curves[0]["all_seconds"] == [24.0, 8.0, 16.0]
    assert curves[0]["all_workspaces"] == [0, 8 * MIB, 4 * MIB]
    assert (curves[0]["seconds"], curves[0]["workspace_mib"]) == (8.0, 8)
    assert len(table("engine-curves", curves).splitlines()) == 2 + len(curves)
    seconds = {row["name"]: row["seconds"] for row in found}
    assert seconds[f"{WHOLE}, each its own"] == 24.0
    assert seconds[f"{POWERS}, each its own"] == 8.0
    assert found[0]["case"].startswith("kernel 3x3x3, 2 to 3 maps, input 5x5x5, batch 8, 2 MiB")


@pytest.mark.usefixtures("gpu_here")
def test_what_a_file_has_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "curves.json"
    rows(tmp_path, f"{LAYER} --step 8 --curves {file}")
    Graph.ran.clear()
    found = rows(tmp_path, f"{LAYER} --step 6 --curves {file}")
    assert len(Graph.ran) == 3 * graph.REPEATS + 3, "six images alone are new"
    assert [row["images"] for row in load(file).rows] == [8, 4, 2, 1, 6]

    def no_gpu(_device: str, _threads: int | None) -> Machine:
        raise InvalidInput("this needs a GPU")

    monkeypatch.setattr(session, "machine_with", no_gpu)
    assert rows(tmp_path, f"{LAYER} --step 6 --curves {file}") == found
    assert load(tmp_path / "out.json").about["ceilings"][0]["device"] == "stand-in"
    more = [*f"paper micro-batches --device gpu {LAYER} --step 1 --curves {file}".split()]
    outcome = CliRunner().invoke(app, more)
    assert isinstance(outcome.exception, InvalidInput), "three images are missing"
    assert CliRunner().invoke(app, [*more, "--seconds", "0"]).exit_code == 0


@pytest.mark.usefixtures("gpu_here")
def test_measurements_end_with_the_time_and_go_on_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "curves.json"
    clock = iter(np.arange(100.0))  # read once at first, and then for each engine that can be built
    monkeypatch.setattr(engines, "perf_counter", lambda: next(clock))
    found = rows(tmp_path, f"{LAYER} --curves {file} --seconds 6")
    assert [row["images"] for row in load(file).rows] == [8], "four images were not tried by all"
    assert {row["name"].split(", ")[0] for row in found} == {WHOLE}
    monkeypatch.undo()


@pytest.mark.usefixtures("gpu_here")
def test_only_the_first_engines_are_tried_if_so_wanted(tmp_path: Path) -> None:
    file = tmp_path / "curves.json"
    rows(tmp_path, f"{LAYER} --proposals 3 --curves {file}")
    assert load(file).rows[0]["all_seconds"] == [24.0, 8.0], "the one that fails counts"


def test_undivided_batches_of_all_networks_come_first() -> None:
    wanted = missing([*NETWORKS.values()], Curves(None), 32)
    assert [images for _, images in wanted[:17]] == [256] * 4 + [128] * 4 + [256] * 9
    first, *_ = NETWORKS["ResNet-18"].calls
    sizes = [images for call, images in wanted if call == first]
    assert sizes == [128, 64, 32, 16, 8, 4, 2, 1, 96]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--workspace 8MiB", "--kernel is needed"),
        ("--workspace 8MiB --kernel 3 --net AlexNet", "--net does nothing with --device cpu"),
        ("--workspace 8MiB --device gpu --net AlexNets", "AlexNets is unknown"),
        ("--workspace 8MiB --device gpu --resident", "--resident does nothing"),
    ],
)
def test_options_of_the_other_device_are_refused(options: str, error: str) -> None:
    outcome = CliRunner().invoke(app, ["paper", "micro-batches", *options.split()])
    assert isinstance(outcome.exception, InvalidInput)
    assert error in str(outcome.exception)
