"""Recorded work of a GPU: launched again with the same results, and only where it is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_plans import run

from znni.core.shapes import Vec3
from znni.engine.backends.cuda import graphs as device_graphs
from znni.engine.backends.cuda.graphs import MOST_RECORDED, PLAIN_RUNS, DeviceGraphs
from znni.engine.labels import Labels
from znni.engine.patch_runner import PatchRunner
from znni.inference import api
from znni.inference.planning import search
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.primitives.catalogue import catalogue

NET = """\
name: unet
layers:
  - name: skip
    conv: {features: 8, kernel: 3, padding: same}
  - conv: {features: 16, kernel: 3, stride: 2, padding: 1}
  - conv: {features: 8, kernel: 3, padding: same}
  - upsample: {factor: 2, mode: trilinear}
  - concat: {}
    from: [upsample1, skip]
  - conv: {features: 3, kernel: 3, padding: same, activation: identity}
"""


class FakeStream:
    """A stream that notes what happens; its graphs do so too."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def begin_capture(self) -> None:
        self.noted.append("begin")

    def end_capture(self) -> FakeStream:
        self.noted.append("end")
        return self

    def launch(self, stream: FakeStream) -> None:
        assert stream is self
        self.noted.append("launch")


def test_work_that_comes_again_is_recorded() -> None:
    stream, calls = FakeStream(), list[str]()
    graphs = DeviceGraphs(stream)

    def work() -> str:
        calls.append("work")
        return "made"

    for _ in range(PLAIN_RUNS):
        assert graphs.launch("key", work) == "made"
    assert stream.noted == []
    for _ in range(3):
        assert graphs.launch("key", work) == "made"
    assert stream.noted == ["begin", "end", "launch", "launch", "launch"]
    assert len(calls) == PLAIN_RUNS + 1
    for key in range(2 * MOST_RECORDED):
        for _ in range(PLAIN_RUNS + 1):
            graphs.launch(key, work)
    assert len(graphs) == MOST_RECORDED


def test_an_error_ends_the_recording() -> None:
    stream = FakeStream()
    graphs = DeviceGraphs(stream)

    def work() -> None:
        if stream.noted:
            raise MemoryError

    for _ in range(PLAIN_RUNS):
        graphs.launch("key", work)
    with pytest.raises(MemoryError):
        graphs.launch("key", work)
    assert stream.noted == ["begin", "end"]
    assert len(graphs) == 0


@pytest.mark.gpu
def test_recorded_blocks_give_the_same_bytes() -> None:
    net, size = network_from_text(NET, "unet.yaml"), Vec3(40, 36, 44)
    options: Any = {"device": "gpu", "costs": "built-in", "border": "same", "threads": 2}
    plan = search(net, size, **options).fastest_for(Vec3.of(8))
    assert plan is not None
    weights = random_weights(plan.network, 7)
    x = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    known, seconds = catalogue(plan.machine), list[float]()
    runner = PatchRunner(plan, known, weights, lambda _step, spent: seconds.append(spent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_graphs, "MOST_RECORDED", 0)
        expected = run(runner, weights, x, border="same", pad="constant")
    assert len(seconds) == plan.patches * len(plan.parts[0].steps)
    for _ in range(2):
        seconds.clear()
        found = run(runner, weights, x, border="same", pad="constant")
        np.testing.assert_array_equal(found, expected)
        assert 0 < len(seconds) < plan.patches * len(plan.parts[0].steps)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [{"labels": True}, {"threshold": 0.1}], ids=["largest", "above"])
def test_a_gpu_makes_the_labels_of_blocks(rule: Any) -> None:
    net, size = network_from_text(NET, "unet.yaml"), Vec3(40, 36, 44)
    options: Any = {"device": "gpu", "costs": "built-in", "border": "same", "threads": 2}
    weights = random_weights(net, 7)
    x = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    plan = search(net, size, **options, **rule).fastest_for(Vec3.of(16))
    values, labels = np.zeros((3, *size), np.float32), np.zeros((3, *size), np.uint8)
    labels = labels[:1] if "labels" in rule else labels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Labels, "apply", None)  # the host makes none
        api.infer(x, net, labels, weights=weights, plan=plan, **options, **rule)
    api.infer(x, net, values, weights=weights, plan=plan, **options)
    right = values.argmax(axis=0)[None] if "labels" in rule else values > rule["threshold"]
    np.testing.assert_array_equal(labels, right)
