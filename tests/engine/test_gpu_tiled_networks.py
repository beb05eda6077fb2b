"""Tiled networks on a GPU: blocks give what one evaluation over the whole volume gives."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeOnGpu
from graphs import graphs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_plans import run

from planner.cost_model import BUILT_IN
from planner.search import Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.shapes import Vec3
from znni.engine.backends.cuda import graphs as device_graphs
from znni.engine.patch_runner import PatchRunner
from znni.engine.reading import read_input
from znni.engine.tiles import for_job, make_job, seen_by
from znni.machine.cuda import cupy
from znni.machine.detect import detect_machine
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.primitive import Catalogue, convolved, on_device
from znni.plans.rewrites.network_rules import as_given
from znni.primitives.catalogue import catalogue
from znni.primitives.gpu.arranged.primitive import Arranged
from znni.primitives.tiled_reference import output_at_once
from znni.volumes.array import ArrayVolume

pytestmark = pytest.mark.gpu

LEFT_OUT = ("arranged", "gpu_direct", "gpu_fft", "gpu_lowered", "gpu_cudnn")


def primitives() -> Catalogue:
    """The machine's own, with the reference's dense convolution."""
    here = detect_machine()
    found = on_device(catalogue(here), "gpu")
    base = FakeOnGpu("gpu_conv", convolved, 1e-3, device=here.gpus[0])
    own = {name: each for name, each in found.items() if not name.startswith(LEFT_OUT)}
    return own | {"gpu_conv": base, "arranged_gpu_conv": Arranged(base)}


@settings(max_examples=30)
@given(graphs(depth=2, most_maps=4), st.data())
def test_blocks_give_what_one_evaluation_gives(network: Network, data: st.DataObject) -> None:
    known, here = primitives(), detect_machine()
    size = Vec3(*(data.draw(st.integers(1, 12)) for _ in range(3)))
    job = make_job(network, size, "same", "constant", None)
    patch = network.alignment * Vec3(*(data.draw(st.integers(1, 3)) for _ in range(3)))
    search = Search(
        for_job(network, job), job.output, here, known, run_overhead(here), BUILT_IN, "none", "gpu"
    )
    plan = search.fastest_for(patch)
    assume(plan is not None)
    assert plan is not None
    shape = (network.in_features, *size)
    volume = np.random.default_rng(0).standard_normal(shape, np.float32)
    weights = random_weights(network, 7)
    cupy().get_default_memory_pool().free_all_blocks()
    runner = PatchRunner(plan, known, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_graphs, "MOST_RECORDED", 0)  # the reference computes on the host
        found = run(runner, weights, volume, border="same", pad="constant")
    seen = read_input(ArrayVolume(volume), job, seen_by(plan.network, job), network.scaling)
    expected = output_at_once(as_given(plan.network), weights, seen)
    expected = expected[:, *(slice(a, a + b) for a, b in zip(job.first, job.output, strict=True))]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max() + 1e-7)
