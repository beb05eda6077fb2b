"""A run takes no more memory than its plan promises: patch after patch, and on its way out."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from block_memory import taken_and_counted
from fake_stages import overhead
from fakes import Fake, machine

from planner.search import Search
from znni.core.option_types import OutputType
from znni.core.shapes import Shape5, Vec3
from znni.core.volume import NewOutput
from znni.engine.patch_runner import PatchRunner
from znni.machine.arena import new_output
from znni.machine.arrays import peak_memory
from znni.network.layers import Conv, Operation
from znni.network.network import Network
from znni.network.weights import ConvWeights, Float32, random_weights
from znni.plans.primitive import Run, convolved
from znni.volumes.formats.hdf5.output import Hdf5Output

# What the allocator, the interpreter and huge pages (2 MiB each) may add or hide, once.
SLACK = 3 * 2**20


class Filling(Fake):
    """Touches all of its output and computes nothing."""

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:  # noqa: ARG002
        out = self.shapes(layer, shape)
        assert out is not None

        def run(_x: Float32) -> Float32:
            y = new_output(out)
            y.fill(0)
            return y

        return run


def test_a_second_patch_touches_the_pages_of_the_first() -> None:
    """An odd number of outputs, and as many input maps as output maps: a large gap to miss."""
    maps = (8, 8, 16, 1)
    layers = (
        Conv(f"conv{index}", *maps[index : index + 2], Vec3(3, 3, 3), "relu") for index in range(3)
    )
    network = Network.chain("wide", 8, tuple(layers))
    catalogue = {"filling": Filling("filling", convolved)}
    output = Vec3(60, 60, 60)
    plan = Search(network, output, machine(), catalogue, overhead()).fastest()[0]
    assert plan.patch == output
    x = np.ones(plan.input_shape[1:], np.float32)
    runner = PatchRunner(plan, catalogue, random_weights(network, 0))
    with peak_memory() as peak:
        for _ in range(2):
            dense = runner(x)
    assert peak.added <= plan.memory.working - x.nbytes + 2 * dense.nbytes + SLACK


@pytest.mark.parametrize("dtype", get_args(OutputType))
def test_a_block_on_its_way_out_takes_what_is_counted(
    dtype: OutputType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "znni.volumes.partial_output.HELD_BYTES", 0
    )  # as larger outputs are written
    size = Vec3(40, 50, 60)
    output = Hdf5Output(tmp_path / "out.h5", NewOutput(2, size, dtype))
    taken, counted = taken_and_counted(output, 2, size, dtype)
    chunk = size.volume * np.dtype(dtype).itemsize
    assert taken <= 1.05 * (counted + chunk)
