"""Tiled networks on an emulated GPU: plans, engine and kernels give the reference."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import ORDERS, Module, emulated_gpu, needs_emulation
from emulated_plans import ERRORS, MACHINE, mostly_packed, plan_for, primitives
from packed_networks import PackedGraph
from random_plans import run
from window_networks import NET, blended

from planner import device_search
from planner.cost_model import BUILT_IN
from planner.device_search import DeviceSearch
from planner.search import Search
from planner.tiled_segments import tiled_segments
from znni.calibration.overhead_figures import run_overhead
from znni.core.errors import InvalidInput
from znni.core.option_types import Accuracy, BlendedActivation, Pad
from znni.core.shapes import Box, Vec3
from znni.engine.block import alone
from znni.engine.checks import check_runnable
from znni.engine.patch_runner import PatchRunner
from znni.engine.reading import read_input
from znni.engine.scaling import StoredScaling
from znni.engine.tiles import for_job, make_job, seen_by
from znni.network.geometry import input_box, with_window
from znni.network.input_scaling import InputScaling
from znni.network.layers import PackedLayer, SummedConv, on_float32
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.plans.accuracy import filter_by_class
from znni.plans.block_storage import BlockStorage
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.rewrites.network_rules import as_given
from znni.plans.segments import Segment
from znni.primitives.reference import activation
from znni.primitives.tiled_reference import output_at_once
from znni.volumes.array import ArrayVolume

pytestmark = needs_emulation

UNET = """\
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
# A U-Net without padding, some of whose values have maps that fill no group.
VALID_UNET = """\
name: valid
layers:
  - conv: {features: 12, kernel: 3, activation: relu}
  - name: skip
    conv: {features: 12, kernel: 3, activation: relu}
  - pool: {window: 2, stride: 2}
  - conv: {features: 20, kernel: 3, activation: elu}
  - conv: {features: 16, kernel: 1}
  - upsample: {factor: 2}
  - concat: {}
    from: [upsample1, skip]
  - conv: {features: 12, kernel: 3, activation: relu}
  - conv: {features: 3, kernel: 1, activation: sigmoid}
"""

# The second convolution adds to the first, which is stored without zeros around it.
RESIDUAL = """\
name: residual
in_features: 2
layers:
  - name: first
    conv: {features: 16, kernel: [1, 3, 3], padding: same, activation: elu}
  - conv: {features: 16, kernel: 1}
  - affine: {activation: elu}
  - name: second
    conv: {features: 16, kernel: 3, padding: same}
  - name: level
    add: {activation: elu}
    from: [second, first]
  - name: average
    pool: {window: [1, 2, 2], stride: [1, 2, 2], kind: average}
  - conv: {features: 32, kernel: 3, padding: same, activation: relu}
  - conv: {features: 16, kernel: 3, padding: same, activation: relu}
  - upsample: {factor: [1, 2, 2], mode: trilinear}
  - add: {}
    from: [upsample1, level]
  - conv: {features: 3, kernel: [1, 3, 3], padding: same, activation: softmax}
"""

# A U-Net with instance norms, as nnU-Net makes them.
PLAIN_UNET = """\
name: plain
layers:
  - conv: {features: 16, kernel: 3, padding: same}
  - name: skip
    instance_norm: {activation: leaky_relu}
  - conv: {features: 32, kernel: 3, stride: 2, padding: 1}
  - instance_norm: {activation: leaky_relu}
  - conv_transpose: {features: 16, kernel: 2, stride: 2}
  - concat: {}
    from: [conv_transpose1, skip]
  - conv: {features: 16, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - name: head
    conv: {features: 5, kernel: 1, activation: softmax}
"""

in_both_classes = pytest.mark.parametrize("accuracy", ERRORS)


def assert_exact(
    network: Network, size: Vec3, plan: Plan, known: Catalogue, error: float = 2e-3
) -> None:
    """Compare what a plan computes with one evaluation over the whole volume."""
    weights = random_weights(network, 7)
    volume = np.random.default_rng(0).standard_normal((network.in_features, *size), np.float32)
    with emulated_gpu(ORDERS[1]):
        runner = PatchRunner(plan, known, weights)
        found = run(runner, weights, volume, border="same", pad="constant")
    job = make_job(network, size, "same", "constant", None)
    seen = read_input(ArrayVolume(volume), job, seen_by(plan.network, job), network.scaling)
    right = output_at_once(as_given(plan.network), weights, seen)
    right = right[:, *(slice(a, a + b) for a, b in zip(job.first, job.output, strict=True))]
    np.testing.assert_allclose(found, right, rtol=0, atol=error * np.abs(right).max())


@pytest.mark.slow
def test_blocks_give_what_one_evaluation_gives() -> None:
    network, size = network_from_text(UNET, "unet"), Vec3(4, 8, 12)
    known = primitives(lambda name: not name.startswith("gpu_packed"))
    assert_exact(network, size, plan_for(network, size, size, known), known)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "size"),
    [(UNET, Vec3(9, 8, 12)), (RESIDUAL, Vec3(4, 8, 12)), (VALID_UNET, Vec3(8, 6, 12))],
    ids=["unet", "residual", "valid"],
)
@in_both_classes
def test_blocks_of_packed_values_give_what_one_evaluation_gives(
    text: str, size: Vec3, accuracy: Accuracy
) -> None:
    network, known = network_from_text(text, "network"), mostly_packed(accuracy)
    plan = plan_for(network, size, Vec3(8, 8, 12), known)
    packed = [step for step in plan.steps if isinstance(step.operation, PackedLayer)]
    assert len(packed) > 4
    summed = [step.gives for step in packed if isinstance(on_float32(step.operation), SummedConv)]
    assert summed == ["level"] * (text == RESIDUAL)
    if text == VALID_UNET:
        assert len(packed) == len(plan.steps)
    assert_exact(network, size, plan, known, ERRORS[accuracy])


# The maps of the convolution that takes joined values fill its groups.
WHOLE_GROUPS = VALID_UNET.replace(
    "[upsample1, skip]\n  - conv: {features: 12", "[upsample1, skip]\n  - conv: {features: 16"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "size"),
    [(UNET, Vec3(9, 8, 12)), (UNET, Vec3(16, 14, 28)), (WHOLE_GROUPS, Vec3(8, 6, 12))],
    ids=["small", "large", "valid"],
)
@in_both_classes
def test_split_convolutions_of_packed_values_give_what_one_evaluation_gives(
    text: str, size: Vec3, accuracy: Accuracy
) -> None:
    network, known = network_from_text(text, "network"), mostly_packed(accuracy)
    plan = plan_for(network, size, Vec3(8, 8, 12), known, splits=True)
    (it,) = plan.network.split
    steps = {step.gives: step for step in plan.steps}
    assert isinstance(on_float32(steps[it.conv.name].operation), SummedConv)
    coarse = steps[it.coarse].operation
    assert isinstance(coarse, PackedLayer)
    assert coarse.reads
    assert coarse.writes
    assert_exact(network, size, plan, known, ERRORS[accuracy])


@pytest.mark.slow
@pytest.mark.parametrize("pad", ["constant", "reflect"])
def test_blocks_of_stored_values_give_the_bits_of_those_that_the_host_scales(pad: Pad) -> None:
    network = network_from_text(VALID_UNET, "valid")
    network = replace(network, scaling=InputScaling(1 / 255, -0.3))
    size, known = Vec3(10, 8, 14), mostly_packed("float32")
    plan = plan_for(network, size, network.alignment * 4, known)
    assert plan.patches > 2
    assert plan.input_itemsize == 4
    stored = replace(plan, input_itemsize=1)
    volume = np.random.default_rng(0).integers(0, 256, (1, *size), np.uint8)
    weights = random_weights(network, 7)
    with emulated_gpu(ORDERS[1]):
        found = [
            run(PatchRunner(each, known, weights), weights, volume, border="same", pad=pad)
            for each in (plan, stored)
        ]
        with pytest.raises(ValueError, match="stored values are given to a plan for float32"):
            give_stored_values_to(PatchRunner(plan, known, weights))
    np.testing.assert_array_equal(found[1], found[0])


def give_stored_values_to(runner: PatchRunner) -> None:
    """Give a block of stored values to a runner, whatever it takes."""
    shape = runner.plan.input_shape
    scaling = StoredScaling(InputScaling(), (None,), Box(Vec3.of(0), shape.size))
    runner(alone(np.zeros(shape[1:], np.uint8), scaling=scaling))


@pytest.mark.slow
def test_blocks_of_split_convolutions_read_all_that_these_see() -> None:
    """If another convolution follows, transposed ones see more voxels than the whole network."""
    conv = "  - conv: {features: 8, kernel: 3, padding: same, activation: elu}\n"
    network = network_from_text(UNET.replace(conv, 2 * conv), "network")
    known, size = mostly_packed("tf32"), Vec3(16, 14, 28)
    plan = plan_for(network, size, Vec3(8, 8, 12), known, splits=True)
    whole = as_given(plan.network)
    assert input_box(whole, plan.patch) != input_box(plan.network, plan.patch)
    assert_exact(network, size, plan, known)


def test_a_plan_that_is_ready_has_loaded_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    network, size = network_from_text(UNET, "network"), Vec3(9, 8, 12)
    known, weights = mostly_packed("tf32"), random_weights(network, 7)
    plan = plan_for(network, size, Vec3(8, 8, 12), known)
    volume = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    with emulated_gpu():
        runner = PatchRunner(plan, known, weights)
        monkeypatch.setattr(Module, "get_function", lambda _, name: pytest.fail(name))
        assert np.isfinite(run(runner, weights, volume, border="same", pad="constant")).all()


def test_blocks_at_the_same_place_are_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the blocks of many small volumes are."""
    network, size = network_from_text(UNET, "network"), Vec3(4, 8, 12)
    known, weights = mostly_packed("tf32"), random_weights(network, 7)
    plan = plan_for(network, size, size, known)
    volume = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    asked: list[str] = []
    inside = BlockStorage.inside

    def noted(self: BlockStorage, name: str, start: Vec3, joined: Sequence[str]) -> Box:
        asked.append(name)
        return inside(self, name, start, joined)

    monkeypatch.setattr(BlockStorage, "inside", noted)
    with emulated_gpu():
        runner = PatchRunner(plan, known, weights)
        first, again = (
            run(runner, weights, volume, border="same", pad="constant") for _ in range(2)
        )
    assert asked
    assert len(asked) == len(set(asked))
    np.testing.assert_array_equal(first, again)


def packed_segments(*arguments: Any, **named: Any) -> Iterator[Segment]:
    """The segment with packed values alone."""
    for segment in tiled_segments(*arguments, **named):
        if any(isinstance(step.operation, PackedLayer) for step in segment.steps):
            yield segment


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "accuracy"), [(10, "tf32"), (11, "float32")])
def test_random_networks_of_packed_values(
    seed: int, accuracy: Accuracy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_search, "tiled_segments", packed_segments)
    draw = random.Random(seed)
    network = PackedGraph(draw).network()
    size, known = Vec3(*(draw.randint(1, 8) for _ in range(3))), mostly_packed(accuracy)
    plan = plan_for(network, size, network.alignment, known)
    assert any(isinstance(step.operation, PackedLayer) for step in plan.steps)
    assert_exact(network, size, plan, known, ERRORS[accuracy])


@pytest.mark.slow
@in_both_classes
def test_windows_of_packed_values_are_blended(accuracy: Accuracy) -> None:
    network = network_from_text(PLAIN_UNET, "plain")
    network = with_window(network, Window(Vec3(8, 8, 12), 0.3, "gaussian", "", "monai"))
    known = filter_by_class(primitives(lambda it: "packed" in it), accuracy)
    volume = np.random.default_rng(0).standard_normal((1, 8, 11, 12), np.float32)
    job = make_job(network, Vec3(*volume.shape[1:]), "valid", None, None)
    plan = plan_for(network, job.output, job.output, known, "valid")
    operations = [step.operation for step in plan.steps if isinstance(step.operation, PackedLayer)]
    assert len(operations) == len(plan.steps)
    with_sums = [operation.name for operation in operations if operation.sums]
    every = ["conv1", "skip", "conv2", "instance_norm2", "conv3", "instance_norm3"]
    strided = every[2:4]  # sums of few voxels cost more than a pass over float16
    assert with_sums == [it for it in every if accuracy == "float32" or it not in strided]
    assert [operation.name for operation in operations if operation.leaves] == ["instance_norm3"]
    (head,) = (operation for operation in operations if operation.norm)
    assert (head.name, head.norm.name) == ("head", "instance_norm3")
    bounds = DeviceSearch(plan.network, tuple(known.values()), BUILT_IN, "none").bounds
    assert all(0 < bounds.of_step(step) <= step.seconds for step in plan.steps)
    weights = random_weights(network, 7)
    with emulated_gpu(ORDERS[1]):
        found = run(PatchRunner(plan, known, weights), weights, volume, pad=None)
    right = blended(network, volume)
    np.testing.assert_allclose(found, right, rtol=0, atol=ERRORS[accuracy] * np.abs(right).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "mirror", "kind"),
    [
        (PLAIN_UNET, "", "identity"),
        (PLAIN_UNET, "y", "identity"),
        (NET, "", "softmax"),
        (NET, "", "sigmoid"),
    ],
)
def test_windows_are_computed_at_once(text: str, mirror: str, kind: BlendedActivation) -> None:
    network = network_from_text(text, "network")
    network = with_window(network, Window(Vec3(4, 8, 4), 0.5, mirror=mirror, activation=kind))
    known = mostly_packed("tf32") if text == PLAIN_UNET else primitives()
    volume = np.random.default_rng(0).standard_normal((network.in_features, 6, 13, 6), np.float32)
    volume[:, 4:] *= 40  # each window has its own mean and spread
    job = make_job(network, Vec3(*volume.shape[1:]), "valid", None, None)
    search = Search(
        for_job(network, job), job.output, MACHINE, known, run_overhead(MACHINE), BUILT_IN,
        "none", "gpu",
    )  # fmt: skip
    weights = random_weights(network, 7)
    right = activation(blended(network, volume)[None], kind)[0]
    for together, patch in ((1, job.output), (4, job.output), (5, Vec3(4, 16, 4))):
        plan = search.computing(together).fastest_for(patch)
        assert plan is not None
        assert {step.shape_in.n for step in plan.steps} == {plan.input_shape.n} == {together}
        assert Plan.from_json(plan.to_json()) == plan
        with emulated_gpu(ORDERS[1]):
            found = run(PatchRunner(plan, known, weights), weights, volume, pad=None)
        atol = ERRORS["tf32"] * np.abs(right).max()
        np.testing.assert_allclose(found, right, rtol=0, atol=atol)


def test_bounds_hold_for_packed_steps() -> None:
    network, size = network_from_text(UNET, "unet"), Vec3(32, 32, 96)
    known = primitives()
    plan = plan_for(network, size, size, known)
    assert any(isinstance(step.operation, PackedLayer) for step in plan.steps)
    bounds = DeviceSearch(plan.network, tuple(known.values()), BUILT_IN, "none").bounds
    for step in plan.steps:
        assert 0 < bounds.of_step(step) <= step.seconds


def test_a_plan_whose_steps_disagree_is_refused() -> None:
    network, size = network_from_text(UNET, "unet"), Vec3(8, 8, 12)
    known = primitives(lambda name: "packed" in name)
    plan = plan_for(network, size, size, known)
    check_runnable(plan, known)
    (segment,) = plan.segments
    steps = list(segment.steps)
    index = next(i for i, step in enumerate(steps) if step.gives == "deep")
    operation = PackedLayer(steps[index].layers[0], reads=False, writes=True)
    cost = known[str(steps[index].primitive)].cost(operation, steps[index].shape_in)
    steps[index] = replace(steps[index], operation=operation, cost=cost)
    wrong = replace(plan, segments=(replace(segment, steps=tuple(steps)),))
    with pytest.raises(
        InvalidInput, match="do not agree which values are packed or normalized; plan again"
    ):
        check_runnable(wrong, known)
