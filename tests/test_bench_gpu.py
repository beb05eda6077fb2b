"""``python -m bench gpu-layers``: what can be told of it without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bench import gpu_commands
from bench.__main__ import app
from bench.gpu_ceilings import GpuCeilings
from bench.gpu_torch import MOST_ELEMENTS, NAMES, most_items
from bench.layers import layer
from bench.on_device import OnDevice
from bench.record import Row, load, save
from bench.report import report
from bench.table import table
from znni.errors import InvalidInput
from znni.machine import Machine, detect_machine
from znni.shapes import Shape5, Vec3

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


def test_a_floor_is_the_longer_of_arithmetic_and_traffic() -> None:
    assert CEILINGS.floor(60e12, 2e12).seconds == 1
    assert CEILINGS.floor(60e12, 2e12).bound == "flops"
    assert CEILINGS.floor(6e12, 8e12).seconds == 2


def test_pytorch_computes_no_more_than_cudnn_counts() -> None:
    conv = layer(Vec3.of(3), 80, 80)
    assert most_items(conv, Shape5(64, 80, 50, 50, 50)) == 64
    many = most_items(conv, Shape5(1000, 80, 50, 50, 50))
    assert many * 80 * 50**3 <= MOST_ELEMENTS < (many + 1) * 80 * 50**3
    assert most_items(conv, Shape5(2, 80, 400, 400, 400)) == 1
    assert len(set(NAMES)) == 8


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


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Machine(detect_machine(threads=1).host)
    monkeypatch.setattr(gpu_commands, "detect_machine", lambda: host)
    result = CliRunner().invoke(app, ["gpu-layers", "--kernel", "3"])
    assert isinstance(result.exception, InvalidInput)
    assert "needs a GPU" in str(result.exception)
