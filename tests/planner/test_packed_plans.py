"""Plans of packed values for a GPU that is not here: the fastest of all, by few questions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, cast

import pytest
from fakes import Lazy
from fused_steps import with_fusions
from packed_networks import PackedGraph
from paths import MACHINES, NETWORKS
from planner_cases import bound_of_patch

from bench.unet_networks import UNETS
from planner import device_search
from planner.bare_steps import sample_steps
from planner.bounds import packed_layers
from planner.cost_model import BUILT_IN
from planner.partition_bounds import PartitionBounds
from planner.search import Search
from planner.step_options import StepOptions
from planner.tiled_segments import tiled_segment, tiled_segments
from znni.calibration.overhead_figures import run_overhead
from znni.core.option_types import Accuracy, Division
from znni.core.plan_options import Choices
from znni.core.shapes import Vec3
from znni.engine.tiles import for_job, make_job
from znni.inference import planning, text_cache
from znni.inference.plan_cache import fastest_cached_or_found
from znni.inference.plan_checks import checked_plan
from znni.machine.machine import Machine
from znni.machine.machine_choice import machine_for
from znni.network.geometry import with_window
from znni.network.input_scaling import InputScaling
from znni.network.layers import (
    Activation,
    Add,
    Conv,
    Normalize,
    Operation,
    PackedLayer,
    Padding,
    Pool,
)
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.node import INPUT, Node
from znni.network.window import Window
from znni.plans.accuracy import filter_by_class
from znni.plans.block_storage import BlockStorage, block_storage
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, Primitive, by_values, on_device
from znni.plans.rewrites import deferred_norm, summing_norm
from znni.plans.rewrites.block_steps import BlockSteps, Near, Rewrite
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.rewrites.packed_rules import follow_rules
from znni.plans.rewrites.packed_values import packed_values
from znni.plans.segments import Segment, Step
from znni.primitives.catalogue import catalogue
from znni.primitives.gpu.packed.base import GpuPackedPass

ONE, THREE = Vec3(1, 1, 1), Vec3(3, 3, 3)


def machine() -> Machine:
    """A machine whose runs take as long as the layers on its GPU."""
    found = machine_for(MACHINES / "h100.yaml", None, None, None, "auto")
    (gpu,) = found.gpus
    fast = {"flops": 1e18, "bandwidth": 1e18}
    return replace(found, host=replace(found.host, **fast), gpus=(replace(gpu, link=1e18),))


def primitives(there: Machine, accuracy: Accuracy = "tf32") -> Catalogue:
    """The GPU's primitives of a class but those by FFT, and those of packed layers."""
    found = filter_by_class(on_device(catalogue(there), "gpu"), accuracy)
    return {name: it for name, it in found.items() if "fft" not in name}


def searched(
    network: Network,
    known: Catalogue,
    there: Machine,
    patch: Vec3,
    division: Division = "none",
) -> Search:
    if network.window:
        job = make_job(network, patch, "valid", None, None)
    else:
        job = make_job(network, patch, "same", "constant", None)
    return Search(
        for_job(network, job), job.output, there, known, run_overhead(there), BUILT_IN,
        division, "gpu",
    )  # fmt: skip


def seconds_of(step: Step, known: Iterable[Primitive]) -> float:
    """The seconds of a bare step by the fastest primitive of all."""
    return min(
        BUILT_IN.estimate(
            it, step.operation, step.shape_in, it.cost(step.operation, step.shape_in)
        ).seconds
        for it in known
        if it.out_shape(step.operation, step.shape_in) == step.shape_out
    )


def all_segments(plan: Plan, options: StepOptions, patch: Vec3, parts: int) -> list[Segment]:
    """The segments of a plan's network, of which one is fastest."""
    network, storage = plan.network, block_storage(plan.network, patch)
    every = fusions(network).values()
    found = tiled_segments(
        network.nodes, storage, every, options, "gpu", parts=parts, fusible_packed=every
    )
    return list(found)


@pytest.mark.slow
def test_several_small_windows_are_computed_at_once() -> None:
    there, network, volume = machine(), UNETS["nnunet-instance"](), Vec3(128, 128, 192)
    known = primitives(there)
    windowed = with_window(network, Window(Vec3.of(64), 0))
    small = searched(windowed, known, there, volume, "power-of-two")
    plan = small.fastest_for(volume)
    assert plan is not None
    at_once = plan.network.together
    assert at_once > 1
    assert {step.shape_in.n for step in plan.steps} == {at_once}
    for found in (plan, small.computing(4).smallest()):
        assert all(str(step.primitive) in known for step in found.steps)  # none is in pieces
    assert (plan.windows, plan.layer_runs) == (12, 3 * -(-4 // at_once))
    assert f"from 12 windows of 64x64x64, {at_once} at once; 1 to cover" in str(plan)
    assert Plan.from_json(plan.to_json()).network.together == at_once
    alone = small.computing(1).fastest_for(volume)
    assert alone is not None
    assert plan.seconds < alone.seconds
    assert bound_of_patch(small, volume) <= plan.seconds
    assert plan.wasted_work == pytest.approx(alone.wasted_work)
    limit = plan.device_memory.total - 1
    less = small.within(limit, "gpu").fastest_for(volume)
    assert less is not None
    assert less.device_memory.total <= limit
    assert less.network.together < at_once
    assert small.smallest().network.together == 1
    assert {some.network.together for some in small.on("cpu")._by_windows_at_once()} == {1}


@pytest.mark.slow
def test_a_plan_that_is_kept_or_given_computes_as_many_windows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(text_cache.FOLDER_VARIABLE, str(tmp_path))
    there, network, volume = machine(), UNETS["nnunet-instance"](), Vec3(128, 128, 192)
    windowed = with_window(network, Window(Vec3.of(64), 0))
    known = Lazy(primitives(there), "packed")
    found, kept = fastest_cached_or_found(searched(windowed, known, there, volume))
    assert found.network.together > 1
    again, kept = fastest_cached_or_found(searched(windowed, known, there, volume))
    assert kept
    assert again == found
    assert again.network.together == found.network.together
    assert again.patch_seconds == found.patch_seconds
    assert again.memory_on("gpu") == found.memory_on("gpu")
    monkeypatch.setattr("znni.inference.plan_checks.detect_for", lambda *_: there)
    monkeypatch.setattr(planning, "primitives_of", lambda *_: known)
    choices = Choices(device="gpu", accuracy="tf32")
    given = checked_plan(found, searched(windowed, known, there, volume).network, choices)
    assert given.network.together == found.network.together
    assert given.limits == found.limits
    assert given.time.patch == found.time.patch


@pytest.mark.slow
def test_the_layers_of_windows_are_searched_once_for_all_patches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, network, volume = machine(), UNETS["rsunet"](), Vec3(256, 256, 256)
    search = searched(with_window(network, Window(Vec3.of(64))), primitives(there), there, volume)
    one, calls = search.computing(1), list[int]()
    (plan,), patches = one.fastest(), list(one.patches())
    assert len(patches) > 20
    assert block_storage(one.network, patches[0]) is block_storage(one.network, patches[-1])
    assert plan.seconds == min(found.seconds for it in patches if (found := one.fastest_for(it)))

    def counted(*given: Any, **named: Any) -> Iterator[Segment]:
        calls.append(1)
        return tiled_segments(*given, **named)

    monkeypatch.setattr("planner.device_search.tiled_segments", counted)
    again = searched(search.given, primitives(there), there, volume).computing(1)
    assert again.fastest()[0].seconds == plan.seconds
    assert len(calls) <= 2  # and once more for batches in pieces


@pytest.mark.slow_cases
@pytest.mark.parametrize(("seed", "accuracy"), [(0, "tf32"), (2, "tf32"), (4, "float32")])
def test_the_choice_of_packed_values_is_the_fastest_of_all(seed: int, accuracy: Accuracy) -> None:
    """Brute force over all segments and primitives, with enough memory."""
    there, network = machine(), PackedGraph(random.Random(seed)).network()
    known, patch = primitives(there, accuracy), network.alignment * (8, 16, 24)
    search = searched(network, known, there, patch)
    plan, bounds = search.fastest_for(patch), search.bounds_on("gpu")
    assert plan is not None
    seconds = []
    parts, options = 1 if accuracy == "tf32" else 2, StepOptions(known.values(), BUILT_IN)
    for segment in all_segments(plan, options, patch, parts):
        each = [seconds_of(step, known.values()) for step in segment.steps]
        for step, least in zip(segment.steps, each, strict=True):
            assert 0 < bounds.of_step(step) <= least
        seconds.append(sum(each))
    assert len(seconds) > 1
    assert sum(step.seconds for step in plan.steps) == pytest.approx(min(seconds))


def test_packed_layers_are_apart_if_they_only_fit_then() -> None:
    wide = partial(Conv, kernel=THREE, activation="relu", padding=Padding(ONE, ONE))
    layers = (
        wide("first", 1, 64),
        Conv("narrow", 64, 8, ONE, "relu"),
        Conv("after", 8, 64, ONE, "identity"),
        wide("last", 64, 2),
    )
    names = (INPUT, *(layer.name for layer in layers))
    nodes = tuple(Node(layer, (taken,)) for layer, taken in zip(layers, names, strict=False))
    network = Network("narrow", 1, nodes, "last", InputScaling())
    patch, there = Vec3.of(128), machine()
    known = primitives(there)
    fused = searched(network, known, there, patch).fastest_for(patch)
    assert fused is not None
    (gpu,) = there.gpus
    smaller = replace(there, gpus=(replace(gpu, memory=fused.gpu_memory.total * 2 // 3),))
    apart = searched(network, known, smaller, patch).fastest_for(patch)
    assert apart is not None
    assert (len(fused.steps), len(apart.steps)) == (3, 4)
    assert all(isinstance(step.operation, PackedLayer) for step in apart.steps)


def residual() -> Network:
    """A network with two blocks that add a convolution to their first one."""
    padding, nodes, taken, maps = Padding(ONE, ONE), list[Node](), INPUT, 1
    for block in "ab":
        for index, activation in enumerate(("elu", "elu", "identity")):
            name = f"{block}{index}"
            conv = Conv(name, maps, 16, THREE, cast(Activation, activation), padding=padding)
            nodes.append(Node(conv, (taken,)))
            taken, maps = name, 16
        nodes.append(Node(Add(f"{block}s", "elu"), (taken, f"{block}0")))
        taken = f"{block}s"
    nodes.append(Node(Conv("last", 16, 3, ONE, "identity"), (taken,)))
    return Network("residual", 1, tuple(nodes), "last", InputScaling())


def packed_steps(network: Network, storage: BlockStorage, options: StepOptions) -> BlockSteps:
    """The steps of a block, of which as many as can be take and make packed values."""
    steps = BlockSteps.layer_by_layer(network.nodes, storage)
    return steps.after(packed_values(steps, options.prices.applies, parts=1))


def test_the_choice_of_packed_sums_is_the_fastest_of_all() -> None:
    there, patch = machine(), Vec3(48, 48, 48)
    known = primitives(there)
    plan = searched(residual(), known, there, patch).fastest_for(patch)
    assert plan is not None
    options, storage = StepOptions(known.values(), BUILT_IN), block_storage(plan.network, patch)
    sums = list(fusions(plan.network).values())
    assert [it.gives for it in sums if storage.allows(it)] == ["as", "bs"]
    packed = packed_steps(plan.network, storage, options)
    seconds = []
    for some in chain.from_iterable(combinations(sums, count) for count in range(3)):
        segment = tiled_segment(with_fusions(packed, some), "gpu")
        assert follow_rules(segment.steps, plan.network.nodes, storage)
        seconds.append(sum(seconds_of(step, known.values()) for step in segment.steps))
    assert sum(step.seconds for step in plan.steps) == pytest.approx(min(seconds))
    assert [step.takes for step in plan.steps if "+" in step.operation.name] == [
        ("a1", "a0"),
        ("b1", "b0"),
    ]
    assert Plan.from_json(plan.to_json()) == plan


def normed() -> Network:
    """A network of convolutions and norms, on windows of 48^3."""
    padding, nodes, taken, maps = Padding(ONE, ONE), list[Node](), INPUT, 1
    for index, features in enumerate((16, 16, 32)):
        conv = Conv(f"conv{index}", maps, features, THREE, "identity", padding=padding)
        norm = Normalize(f"norm{index}", features, features, activation="leaky_relu")
        nodes += [Node(conv, (taken,)), Node(norm, (conv.name,))]
        taken, maps = norm.name, features
    nodes.append(Node(Conv("last", 32, 3, ONE, "identity"), (taken,)))
    network = Network("normed", 1, tuple(nodes), "last", InputScaling())
    return with_window(network, Window(Vec3(48, 48, 48), overlap=0))


def with_fields(steps: BlockSteps, name: str, fields: dict[str, Any]) -> PackedLayer:
    found = steps.packed(name)
    assert found
    return replace(found, **fields)


@pytest.mark.slow
def test_the_choice_of_layers_that_do_a_part_of_norms_is_the_fastest_of_all() -> None:
    there, patch = machine(), Vec3(48, 48, 48)
    known = primitives(there)
    search = searched(normed(), known, there, patch)
    plan, bounds = search.fastest_for(patch), search.bounds_on("gpu")
    assert plan is not None
    options, storage = StepOptions(known.values(), BUILT_IN), block_storage(plan.network, patch)
    nodes = plan.network.nodes
    packed = packed_steps(plan.network, storage, options)
    sums = [it for node in nodes if (it := summing_norm.rewrite(packed, node))]
    assert [set(it.new) for it in sums] == [{f"conv{index}", f"norm{index}"} for index in range(3)]
    left = [it for node in nodes if (it := deferred_norm.rewrite(packed, node))]
    assert [set(it.new) for it in left] == [
        {"norm0", "conv1"}, {"norm1", "conv2"}, {"norm2", "last"},
    ]  # fmt: skip
    names = [node for node in nodes if isinstance(node.layer, Normalize)]
    choices = chain.from_iterable(combinations(names, count) for count in range(4))
    seconds = []
    for some, last in product(choices, ([], names[-1:])):
        steps = packed
        for rule, norms in ((summing_norm, some), (deferred_norm, last)):
            for norm in norms:
                rewrite = rule.rewrite(steps, norm)
                assert rewrite
                steps = steps.after(rewrite)
        segment = tiled_segment(steps, "gpu")
        assert follow_rules(segment.steps, plan.network.nodes, storage)
        each = [seconds_of(step, known.values()) for step in segment.steps]
        for step, least in zip(segment.steps, each, strict=True):
            assert 0 < bounds.of_step(step) <= least
        seconds.append(sum(each))
    assert sum(step.seconds for step in plan.steps) == pytest.approx(min(seconds))
    assert min(seconds) < seconds[0]
    for changed in (
        {"norm1": {"sums": True}},
        {"norm2": {"leaves": True}},
        {"last": {"norm": names[2].layer}},
        {"norm2": {"leaves": True}, "last": {"norm": names[1].layer}},
    ):
        alone = {name: with_fields(packed, name, values) for name, values in changed.items()}
        wrong = tiled_segment(packed.after(Rewrite(alone)), "gpu")
        assert not follow_rules(wrong.steps, plan.network.nodes, storage)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.slow_cases
@pytest.mark.parametrize(("accuracy", "parts"), [("tf32", 1), ("float32", 2)])
def test_packed_numbers_have_as_few_parts_as_the_accuracy_allows(
    accuracy: Accuracy, parts: int
) -> None:
    there, network = machine(), load_network(NETWORKS / "cells-unet.yaml")
    known, patch = primitives(there, accuracy), Vec3(128, 128, 128)
    plan = searched(network, known, there, patch).fastest_for(patch)
    assert plan is not None
    packed = [step.operation for step in plan.steps if isinstance(step.operation, PackedLayer)]
    assert packed
    assert {operation.parts for operation in packed} == {parts}
    assert Plan.from_json(plan.to_json()) == plan


def test_the_order_of_segments_costs_no_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    there, network = machine(), load_network(NETWORKS / "cells-unet.yaml")
    known, patch = primitives(there), Vec3(128, 128, 128)
    found = []
    for step in (1, -1):

        def ordered(*given: Any, step: int = step, **named: Any) -> list[Segment]:
            return list(tiled_segments(*given, **named))[::step]

        monkeypatch.setattr(device_search, "tiled_segments", ordered)
        search = searched(network, known, there, patch)
        found.append((search.fastest_for(patch), search.calls))
    assert found[0] == found[1]


def test_only_convolutions_read_or_write_packed_values_alone() -> None:
    both = [(True, True)]
    pool, conv = Pool("pool", THREE), Conv("conv", 8, 8, THREE, "relu")
    assert [(it.reads, it.writes) for it in packed_layers(pool, 1)] == both
    assert [(it.reads, it.writes) for it in packed_layers(conv, 1)] == [
        (True, False),
        *both,
        (False, True),
    ]
    for after, sums in ((pool, []), (Normalize("norm", 8, 8), [True, False])):
        ways = (summing_norm.variants(it, Near((), (after,))) for it in packed_layers(conv, 1))
        assert [it.reads for it in chain.from_iterable(ways)] == sums


def test_primitives_decline_values_of_the_other_kind() -> None:
    packed, others = by_values(primitives(machine()).values())
    assert len(packed) == 2 * 13
    operations: list[tuple[Operation, int]] = [
        (Conv("conv", 16, 16, THREE, "relu"), 16),
        (Pool("pool", THREE, step=THREE), 16),
        (Add("add"), 32),
    ]
    for operation, features in operations:
        for step in sample_steps(PackedLayer(operation, True, True), features):
            assert isinstance(step.operation, PackedLayer)
            assert not any(it.out_shape(step.operation, step.shape_in) for it in others)
            names = {it.name for it in packed if it.out_shape(step.operation, step.shape_in)}
            assert names
            assert all(name.endswith("_float16") for name in names)
            pairs = replace(step.operation, parts=2)
            also = {it.name for it in packed if it.out_shape(pairs, step.shape_in)}
            assert also == {name.removesuffix("_float16") for name in names}
        for step in sample_steps(operation, features):
            assert not any(it.out_shape(step.operation, step.shape_in) for it in packed)


def test_a_search_asks_primitives_of_packed_layers_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, asked = machine(), list[Operation]()
    of_pass = GpuPackedPass.out_shape

    def noted(self: GpuPackedPass, layer: Operation, *others: object) -> object:
        asked.append(layer)
        return of_pass(self, layer, *others)

    monkeypatch.setattr(GpuPackedPass, "out_shape", noted)
    network = load_network(NETWORKS / "cells-unet.yaml")
    patch = Vec3(128, 128, 128)
    plan = searched(network, primitives(there), there, patch).fastest_for(patch)
    assert plan is not None
    assert any(isinstance(step.operation, PackedLayer) for step in plan.steps)
    assert asked
    assert all(isinstance(layer, PackedLayer) for layer in asked)


@pytest.mark.slow_cases
@pytest.mark.parametrize("memory", ["100MB", "150MB"])
def test_packed_values_take_half_the_memory_that_rules_patches_out(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16, arrays that would not fit as float32 may fit."""

    def fastest() -> float:
        search = planning.search(
            NETWORKS / "cells-unet.yaml", (256, 512, 512), machine=MACHINES / "h100.yaml",
            device="gpu", accuracy="tf32", border="same", gpu_memory=memory, costs="built-in",
        )  # fmt: skip
        return search.fastest()[0].seconds

    found = fastest()
    monkeypatch.setattr(PartitionBounds, "working", lambda *_: 0)
    assert found == pytest.approx(fastest())
