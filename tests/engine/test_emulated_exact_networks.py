"""Exact networks on an emulated GPU: plans, engine and kernels give the reference."""

from __future__ import annotations

import numpy as np
from emulated_gpu import EMULATED, ORDERS, emulated_gpu, needs_emulation
from random_plans import run

from planner.cost_model import BUILT_IN
from planner.exhaustive import Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.shapes import Vec3
from znni.engine.patch import PatchRunner
from znni.engine.tiles import for_job, make_job, read_input, seen_by
from znni.machine.machine import Device, Machine
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.plans.primitive import Catalogue, on_device
from znni.primitives.catalogue import catalogue
from znni.primitives.reference import exact
from znni.volumes.array import ArrayVolume

pytestmark = needs_emulation

NETWORK = """\
name: unet
in_features: 1
layers:
  - conv: {features: 8, kernel: 3, padding: same, activation: relu}
  - name: skip
    conv: {features: 16, kernel: 3, padding: same, activation: relu}
  - pool: {window: 2, stride: 2}
  - name: deep
    conv: {features: 24, kernel: 3, padding: same, activation: leaky_relu}
  - upsample: {factor: 2}
  - concat: {}
    from: [skip, upsample1]
  - conv: {features: 8, kernel: 3, padding: same, activation: elu}
  - conv: {features: 2, kernel: 1}
"""

# Primitives that call libraries, or that are for other layers.
LEFT_OUT = ("gpu_cudnn", "gpu_fft", "gpu_model", "arranged_gpu_cudnn")


def machine_and_primitives() -> tuple[Machine, Catalogue]:
    """A machine with the emulated GPU, and the primitives of that."""
    machine = Machine(Device("cpu", "host", 2**34, 2, flops=1e11, bandwidth=1e10), (EMULATED,))
    found = on_device(catalogue(machine), "gpu")
    return machine, {name: it for name, it in found.items() if not name.startswith(LEFT_OUT)}


def test_blocks_of_a_unet_give_what_one_evaluation_gives() -> None:
    network, size = network_from_text(NETWORK, "unet"), Vec3(9, 8, 12)
    machine, primitives = machine_and_primitives()
    job = make_job(network, size, "same", "constant", None)
    search = Search(
        for_job(network, job), job.output, machine, primitives, run_overhead(machine), BUILT_IN,
        "none", "gpu",
    )  # fmt: skip
    plan = search.fastest_for(Vec3(8, 8, 12))
    assert plan is not None
    weights = random_weights(network, 7)
    volume = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    with emulated_gpu(ORDERS[1]):
        runner = PatchRunner(plan, primitives, weights)
        found = run(runner, weights, volume, border="same", pad="constant")
    seen = read_input(ArrayVolume(volume), job, seen_by(plan.network, job), network.scaling)
    expected = exact(plan.network, weights, seen)
    expected = expected[:, *(slice(a, a + b) for a, b in zip(job.first, job.output, strict=True))]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
