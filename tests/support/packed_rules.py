"""Runs, on the emulated GPU, of a network of packed values whose steps some rules have changed."""

from __future__ import annotations

from collections.abc import Iterable
from unittest import mock

import numpy as np
from emulated_gpu import ORDERS, emulated_gpu
from emulated_plans import ERRORS, plan_for, primitives
from random_plans import run
from window_networks import blended

from znni.core.option_types import Accuracy
from znni.core.shapes import Vec3
from znni.engine.patch_runner import PatchRunner
from znni.network.geometry import with_window
from znni.network.layers import PackedLayer
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.plans.accuracy import filter_by_class
from znni.plans.rewrites.packed_rules import PackedRule

SMALL = Vec3(4, 8, 12)

NORMED = """\
name: normed
layers:
  - conv: {features: 16, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - conv: {features: 16, kernel: 3, padding: same}
  - instance_norm: {activation: elu}
  - name: head
    conv: {features: 3, kernel: 1, activation: softmax}
"""


def operations_by(
    rules: Iterable[PackedRule],
    text: str = NORMED,
    accuracy: Accuracy = "float32",
    size: Vec3 = SMALL,
) -> list[PackedLayer]:
    """Return the steps of a plan made by some rules alone, after comparing its output."""
    network = with_window(network_from_text(text, "normed"), Window(size, 0))
    known = filter_by_class(primitives(lambda it: "packed" in it), accuracy)
    volume = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    with mock.patch("planner.tiled_segments.RULES", tuple(rules)):
        plan = plan_for(network, size, size, known, "valid")
    weights = random_weights(network, 7)
    with emulated_gpu(ORDERS[1]):
        found = run(PatchRunner(plan, known, weights), weights, volume, pad=None)
    right = blended(network, volume)
    atol = ERRORS[accuracy] * np.abs(right).max()
    np.testing.assert_allclose(found, right, rtol=0, atol=atol)
    operations = [step.operation for step in plan.steps]
    return [operation for operation in operations if isinstance(operation, PackedLayer)]
