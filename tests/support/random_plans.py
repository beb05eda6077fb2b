"""Plans for tests, cut at random into segments, and between host and GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from fake_stages import overhead
from fakes import FUSED, Fake, fake_catalogue, fake_gpu_catalogue, gpu, machine
from hypothesis import strategies as st

from bench.reference import sliding_output
from planner.cost_model import BUILT_IN
from planner.limits import memory_of_run, time_of_run
from planner.partition import Partition, cut_network, cut_points
from planner.segmentations import segmentations
from planner.step_options import StepOptions
from znni.core.processors import DeviceChoice, DeviceKind
from znni.core.shapes import Box, Vec3
from znni.engine.block_reader import BlockReader
from znni.engine.patch_runner import PatchRunner
from znni.engine.pipeline import PatchStages, PreparedHere, run_volume
from znni.engine.run_state import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, make_job
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.weights import Float32, Weights, random_weights
from znni.plans.device_partition import parts_of
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, convolved, on_device
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.rewrites.network_rules import as_given
from znni.plans.segments import Segment
from znni.plans.swept import swept_for
from znni.volumes.array import ArrayOutput, ArrayVolume

DEVICES: tuple[DeviceKind, ...] = ("cpu", "gpu")
NO_OVERHEAD = overhead()
WORKSPACE = 1000
SEPARATE = fake_catalogue(Fake("conv", convolved, flops=100.0, workspace=WORKSPACE))
CATALOGUE = SEPARATE | {"fused": FUSED} | fake_gpu_catalogue(workspace=WORKSPACE)


def plan_of(
    undecided: Iterable[Segment],
    network: Network,
    output: Vec3,
    patch: Vec3,
    catalogue: Catalogue = CATALOGUE,
) -> Plan:
    """Return a plan of these segments."""
    by = {
        device: StepOptions(on_device(catalogue, device).values(), BUILT_IN) for device in DEVICES
    }
    segments = tuple(
        replace(segment, steps=tuple(by[segment.device](step)[0] for step in segment.steps))
        for segment in undecided
    )
    swept = swept_for(network, patch, output)
    parts = parts_of(segments, network.shapes(patch)[INPUT], swept=swept)
    memory, gpu_memory = memory_of_run(network, patch, parts, NO_OVERHEAD)
    time = time_of_run(network, patch, parts, NO_OVERHEAD)
    there = replace(machine(), gpus=(gpu(),) if gpu_memory else ())
    return Plan(network, there, output, patch, segments, memory, time, "guessed", gpu_memory)


def any_plan(
    draw: st.DrawFn,
    network: Network,
    output: Vec3,
    patch: Vec3,
    device: DeviceChoice,
    catalogue: Catalogue = CATALOGUE,
) -> Plan:
    """Draw a plan with the given patch and devices, cut at random into segments."""
    place = draw(st.sampled_from(cut_points(network, device)))
    segments: list[Segment] = []
    for partition in cut_network(network, network.shapes(patch), place).partitions:
        batch = partition.input_shape.n
        some = draw(st.sampled_from([n for n in range(1, batch + 1) if batch % n == 0]))
        first_input = partition.input_shape._replace(n=some)
        fusible = tuple(fusions(network).values()) if has_fused(catalogue, partition) else ()
        every = segmentations(
            partition.nodes,
            first_input,
            fusible=fusible,
            device=partition.device,
            swept=swept_for(network, patch, output),
        )
        segments += draw(st.sampled_from(list(every)))
    return plan_of(segments, network, output, patch, catalogue)


def twice_as_slow(plan: Plan) -> Plan:
    """Return a plan that computes the same in twice the predicted seconds."""
    slower = (
        replace(segment, steps=tuple(replace(it, seconds=2 * it.seconds) for it in segment.steps))
        for segment in plan.segments
    )
    return replace(plan, segments=tuple(slower))


def has_fused(catalogue: Catalogue, partition: Partition) -> bool:
    return "fused" in on_device(catalogue, partition.device)


def run(runner: PatchStages, weights: Weights, volume: Float32, **job_options: Any) -> Float32:
    """Return the output of a job, and check that each voxel is written once."""
    network = as_given(runner.plan.network)
    options = {"border": "valid", "pad": "reflect", "roi": None} | job_options
    job = make_job(network, Vec3(*volume.shape[1:]), **options)
    result = np.full((network.out_features, *job.output), np.nan, np.float32)
    written = np.zeros(job.output, int)

    class Once(ArrayOutput):
        def write(self, box: Box, values: Float32) -> None:
            written[box.slices] += 1
            super().write(box, values)

    output = Once(result, network.out_features, job.output)
    remaining = Remaining(job)
    reader = BlockReader(ArrayVolume(volume), job, network, weights)
    state = RunState(reader, output, "float32", remaining)
    run_volume(state, PreparedHere(runner.plan, lambda: runner), Stopwatch())
    assert remaining.voxels == 0
    assert (written == 1).all(), "every output voxel is written exactly once"
    return result


def random_volume(network: Network, output: Vec3, seed: int) -> Float32:
    size = output + network.field_of_view - 1
    generator = np.random.default_rng(seed)
    return generator.standard_normal((network.in_features, *size), np.float32)


def run_plan(network: Network, plan: Plan, volume: Float32, **job_options: Any) -> Float32:
    """Return the output of a job by the primitives for tests, with random weights."""
    weights = random_weights(network, 7)
    return run(PatchRunner(plan, CATALOGUE, weights), weights, volume, **job_options)


def assert_dense(network: Network, plan: Plan) -> None:
    """What a plan gives for its output is what single windows give."""
    generator = np.random.default_rng(0)
    extents = plan.output + network.field_of_view - 1
    volume = generator.random((1, *extents), dtype=np.float32)
    expected = sliding_output(network, random_weights(network, 7), volume)
    np.testing.assert_allclose(run_plan(network, plan, volume), expected, rtol=1e-4, atol=1e-5)
