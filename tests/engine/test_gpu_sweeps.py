"""Sweeps on a GPU, by its own primitives: along each axis, the output is the reference's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import ORDERS, emulated_gpu, needs_emulation
from emulated_plans import MACHINE
from emulated_plans import primitives as emulated
from random_networks import chain
from random_plans import run

from bench.reference import sliding_output
from planner.cost_model import BUILT_IN
from planner.search import Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.shapes import AXES, Axis, Vec3, resized
from znni.engine.patch_runner import PatchRunner
from znni.machine.detect import detect_machine
from znni.machine.machine import Machine
from znni.network.input_scaling import InputScaling
from znni.network.weights import random_weights
from znni.plans.accuracy import filter_by_class
from znni.plans.primitive import Catalogue, on_device
from znni.primitives.catalogue import catalogue

NETWORK = replace(
    chain(("conv", 3), ("pool", 2), ("conv", 2), ("conv", 3), features=3),
    scaling=InputScaling(1 / 77, -0.7),
)


def is_the_reference(machine: Machine, known: Catalogue, axis: Axis) -> None:
    """Two columns of three blocks, of values that the host or the GPU scales."""
    output = resized(resized(Vec3(6, 6, 6), "x" if axis == "y" else "y", 12), axis, 12)
    search = Search(
        NETWORK, output, machine, known, run_overhead(machine), BUILT_IN, "none", "gpu"
    ).sweeping(axis)
    plan = search.fastest_for(resized(Vec3(6, 6, 6), axis, 4))
    assert plan
    size = output + NETWORK.field_of_view - 1
    volume = np.random.default_rng(0).integers(0, 255, (1, *size), np.uint8)
    weights = random_weights(NETWORK, 7)
    seen = volume * np.float32(1 / 77) - np.float32(0.7)
    expected = sliding_output(NETWORK, weights, seen)
    for each in (plan, replace(plan, input_itemsize=1)):
        found = run(PatchRunner(each, known, weights), weights, volume)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow_cases
@needs_emulation
@pytest.mark.parametrize("axis", AXES)
def test_sweeps_on_an_emulated_gpu(axis: Axis) -> None:
    with emulated_gpu(ORDERS[1]):
        is_the_reference(MACHINE, filter_by_class(emulated(), "float32"), axis)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("only", ["", "gpu_fft_tiled", "gpu_direct"])
def test_sweeps_on_a_gpu(axis: Axis, only: str) -> None:
    here = detect_machine()
    known = {
        name: it
        for name, it in filter_by_class(on_device(catalogue(here), "gpu"), "float32").items()
        if name.startswith(only) or "pool" in name
    }
    is_the_reference(here, known, axis)
