"""``python -m bench layers --device gpu``, ``exercise``: the parts that need no GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_layers import H200
from layers import is_tested, random_case
from quick_benchmarks import needs_torch
from typer.testing import CliRunner

from bench import layers, rounds, session
from bench.__main__ import app
from bench.accuracy import OnDevice
from bench.ceilings import Floor, GpuCeilings
from bench.exercise import TILED, cases_for, relative_error
from bench.layers import compare_on_gpu, convolution_of, fastest_of, layer, layers_of
from bench.peers.torch_layer import (
    GPU_NAMES,
    MOST_ELEMENTS,
    RUN_FLOPS,
    TorchLayer,
    part_at_once,
)
from bench.record import Row, load, save
from bench.report import report
from bench.rounds import Effort, Result
from bench.table import table
from planner.cost_model import BUILT_IN
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_machine
from znni.machine.machine import Machine
from znni.plans.accuracy import class_of
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Primitive, on_device
from znni.primitives.catalogue import catalogue

CEILINGS = GpuCeilings("NVIDIA H200", flops=60e12, copy_bandwidth=4e12)
ROWS: list[Row] = [
    {
        "kernel": "3x3x3", "maps": "1->80", "input": "1x1x9x9x9", "name": "gpu_direct",
        "ns_per_voxel": 0.157, "tflops_direct": 27.6, "floor_ns": 0.076, "bound": "bytes",
        "achieved": 0.48, "error": 1.5e-7,
    },
    {"kernel": "3x3x3", "name": "torch_tf32", "skipped": "RuntimeError: out of memory"},
]  # fmt: skip


def test_results_go_through_json_to_a_table_and_a_page(tmp_path: Path) -> None:
    save(tmp_path / "rows.json", "gpu-layers", ROWS, [CEILINGS])
    record = load(tmp_path / "rows.json", "gpu-layers")
    assert table("gpu-layers", record.rows) == table("gpu-layers", ROWS)
    assert "0.076 (bytes)" in table("gpu-layers", ROWS)
    assert "out of memory" in table("gpu-layers", ROWS)
    assert f"- {CEILINGS}" in report({"rows.json": record})


def test_layers_of_as_many_maps_in_as_out_come_kernel_by_kernel() -> None:
    found = layers_of([2, 3], [4], [9], [(8, 8), (5, 5)])
    assert [(convolution_of(it).kernel.z, shape.f) for it, shape in found] == [
        (2, 8), (3, 8), (2, 5), (3, 5)
    ]  # fmt: skip


def test_of_each_accuracy_class_the_fastest_are_measured() -> None:
    machine = Machine(detect_machine().host, (H200,))
    conv, shape = layer(Vec3.of(3), 80, 80), Shape5.of(8, 80, Vec3.of(98))
    every = [p for p in on_device(catalogue(machine), "gpu").values() if p.out_shape(conv, shape)]
    seconds = {
        p.name: BUILT_IN.estimate(p, conv, shape, p.cost(conv, shape)).seconds for p in every
    }
    found = fastest_of(every, conv, shape, 2)
    assert len(found) == 2 * len({class_of(p) for p in every})
    for accuracy in {class_of(p) for p in every}:
        same = sorted(seconds[p.name] for p in every if class_of(p) == accuracy)
        assert [seconds[p.name] for p in found if class_of(p) == accuracy] == same[:2]
    assert fastest_of(every, conv, shape, None) == every


def test_a_floor_is_the_longer_of_arithmetic_and_traffic() -> None:
    memory = Memory(0, 0, 0)
    assert CEILINGS.floor(Cost(60e12, 2e12, memory, 0.5)) == Floor(1, "flops")
    assert CEILINGS.floor(Cost(6e12, 8e12, memory, 0.5)) == Floor(2, "bytes")
    on_matrix_units = Cost(6000e12, 8e12, memory, 3)
    assert CEILINGS.floor(on_matrix_units) == Floor(2, "bytes")
    assert replace(CEILINGS, matrix_flops=600e12).floor(on_matrix_units) == Floor(10, "flops")


def test_limits_are_told_as_far_as_they_were_measured() -> None:
    assert "60.0 Tflop/s on registers, 4.00 TB/s copied" in str(CEILINGS)
    measured = replace(CEILINGS, matrix_flops=600e12)
    assert "on registers, 600 of float16 matrices, 4.00 TB/s copied" in str(measured)


def test_pytorch_computes_no_more_at_once_than_cudnn_counts_and_autotuning_bears() -> None:
    first, hidden = layer(Vec3.of(2), 1, 80), layer(Vec3.of(9), 80, 80)
    batch = Shape5(64, 1, 50, 50, 50)
    assert part_at_once(first, batch) == batch
    many = part_at_once(first, Shape5(1000, 1, 150, 150, 150)).n
    assert many * 80 * 150**3 <= MOST_ELEMENTS < (many + 1) * 80 * 150**3
    some = part_at_once(hidden, Shape5(64, 80, 40, 40, 40)).n
    assert some * 32**3 * 2 * 80 * 80 * 9**3 <= RUN_FLOPS
    assert 1 < some < 64
    planes = part_at_once(hidden, Shape5(64, 80, 200, 208, 208))
    assert planes == Shape5(1, 80, 8 + 5, 208, 208)
    assert part_at_once(layer(Vec3.of(9), 80, 80, 2), Shape5(2, 80, 900, 900, 900)).z == 10
    assert len(set(GPU_NAMES)) == 8


def test_runs_are_as_many_as_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([2.0, *range(1, 10)])
    monkeypatch.setattr(rounds, "seconds_on_device", lambda _: float(next(taken)))
    calls: list[int] = []
    assert rounds.rounds_on_gpu(lambda: calls.append(1), Effort(5, 7)).by_round == (1, 2, 3)
    assert calls == [1]
    assert rounds.rounds_on_gpu(lambda: None, Effort(5, 1)).by_round == (5,)
    assert rounds.rounds_on_gpu(lambda: None, Effort(2, 99)).by_round == (7, 8)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "primitive",
    on_device(catalogue(Machine(detect_machine(threads=1).host, (H200,))), "gpu").values(),
    ids=lambda primitive: primitive.name,
)
def test_every_primitive_for_gpus_is_exercised(primitive: Primitive) -> None:
    cases = list(cases_for(primitive))
    assert len(cases) >= 2
    for operation, shape in cases:
        assert primitive.out_shape(operation, shape) is not None
        assert shape.elements < 10**6


@pytest.mark.slow
def test_the_exercises_errors_are_those_of_the_reference(machine: Machine) -> None:
    host = catalogue(machine)
    for name in ("direct", "direct_pooled", "max_pooling", "max_pooling_fragments"):
        for operation, shape in list(cases_for(host[name]))[-1:]:
            case = random_case(operation, shape)
            y = case.run(host[name])
            assert relative_error(operation, case.x, case.weights, y) <= host[name].accuracy
            y[-1, 0, 0, 0, 0] += 10 * np.abs(y).max()
            assert relative_error(operation, case.x, case.weights, y) > 1
            y[-1, 0, 0, 0, 0] = np.nan
            assert relative_error(operation, case.x, case.weights, y) == np.inf
    for operation, shape in TILED[: len(TILED) // 2]:
        able = next(p for p in host.values() if p.out_shape(operation, shape) and is_tested(p))
        case = random_case(operation, shape)
        y = case.run(able)
        assert relative_error(operation, case.x, case.weights, y) <= max(able.accuracy, 1e-6)
        assert relative_error(operation, case.x, case.weights, 2 * y) > 0.1


def test_parts_of_an_array_come_to_the_host() -> None:
    class There:
        """Like an array of CuPy."""

        def __init__(self, array: np.ndarray) -> None:
            self.array, self.shape = array, array.shape

        def __getitem__(self, index: object) -> There:
            return There(self.array[index])

        def get(self) -> np.ndarray:
            return self.array

    array = np.arange(24).reshape(2, 3, 4)
    there = OnDevice(There(array))
    assert there.shape == (2, 3, 4)
    np.testing.assert_array_equal(there[1, :, 2], array[1, :, 2])


@pytest.mark.slow
@needs_torch
def test_rows_hold_what_a_gpu_would_measure(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's primitives and PyTorch's take the place of a GPU's."""

    class FakeArena:
        def __init__(self, capacity: int) -> None:
            self.peak = capacity

        in_use = staticmethod(nullcontext)

    def a_second(work: Callable[[], object], effort: Effort) -> Result:
        work()
        return Result((1.0,) * effort.repeats)

    def on_host(*arguments: object) -> TorchLayer:
        name, operation, weights, x, device, proposals = arguments
        assert (device, proposals) == ("cuda", 10)
        return TorchLayer(name, operation, weights, x)

    monkeypatch.setattr(layers, "cupy", lambda: np)
    monkeypatch.setattr(layers, "DeviceArena", FakeArena)
    monkeypatch.setattr(layers, "OnDevice", np.asarray)
    monkeypatch.setattr(layers, "TorchLayer", on_host)
    monkeypatch.setattr(TorchLayer, "output", lambda made: made().numpy())
    monkeypatch.setattr(layers, "rounds_on_gpu", a_second)
    monkeypatch.setattr(layers, "seconds_on_device", lambda _: 1.0)
    monkeypatch.setattr(layers, "gpu_peak_bytes", lambda _: 3 << 20)
    for name in ("release_gpu_memory", "free_torch_memory"):
        monkeypatch.setattr(layers, name, lambda: None)
    conv, shape = layer(Vec3.of(3), 2, 4), Shape5.of(2, 2, Vec3.of(10))
    primitives = [catalogue(machine)[name] for name in ("direct", "fft_tiled_8")]
    compared = compare_on_gpu(
        primitives, conv, shape, Effort(2, 60.0), CEILINGS, peers=GPU_NAMES[:1]
    )
    *ours, theirs = rows = list(compared)
    assert [row["name"] for row in rows] == ["direct", "fft_tiled_8", "torch_fp32"]
    for row in rows:
        assert row["device"] == "NVIDIA H200"
        assert row["error"] < 1e-5
        assert row["rounds"] == 2
        assert row["ns_per_voxel"] == pytest.approx(1e9 / (2 * 8**3))
        assert row["tflops_direct"] == pytest.approx(2 * 8**3 * 2 * 4 * 27 * 2 / 1e12)
    for row in ours:
        assert row["floor_ns"] >= row["traffic_ns"] > 0
        assert row["peak_mib"] == pytest.approx(row["declared_mib"])
        assert row["model_seconds"] > 0
    assert theirs["peak_mib"] == 3
    assert theirs["measured"] == "1 times 2x2x10x10x10"
    late = compare_on_gpu(primitives[:1], conv, shape, Effort(1, 1e-9), CEILINGS, peers=())
    assert "would take" in next(late)["skipped"]


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Machine(detect_machine(threads=1).host)
    monkeypatch.setattr(session, "detect_machine", lambda **_: host)
    on_gpu = ["--device", "gpu"]
    for command in (["layers", "--kernel", "3", *on_gpu], ["profile", "--net", "a", *on_gpu]):
        result = CliRunner().invoke(app, command)
        assert isinstance(result.exception, InvalidInput)
        assert "needs a GPU" in str(result.exception)
