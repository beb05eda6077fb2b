"""Where a plan's patch spends its time on a GPU: each layer by its clock, beside predictions."""

from __future__ import annotations

from bench.gpu_ceilings import GpuCeilings
from bench.gpu_plan_patches import GpuPlanPatches
from bench.record import Row
from bench.rounds import Result
from planner.cost_model import BUILT_IN
from znni.core.options import OutputType
from znni.plans.micro_batches import named
from znni.plans.plan import Plan
from znni.primitives.catalogue import catalogue


def profile_on_gpu(
    plan: Plan, ceilings: GpuCeilings, repeats: int, dtype: OutputType = "float32"
) -> list[Row]:
    """A row for each step of a plan, summed over its runs in a patch, and one for the patch.

    Args:
        plan: whose layers are on the GPU; run with random weights.
        ceilings: of the GPU, for the floor under each step.
        repeats: patches that are timed after the first.
        dtype: of their output, that the plan is for.
    """
    patches = GpuPlanPatches(plan, dtype)
    result = Result(patches.seconds(repeats))
    taken = patches.layer_seconds()
    # Of few patches, the time between two may be short where the one before was late.
    total = max(result.timing.median, sum(taken.values()))
    known = catalogue(plan.machine)
    rows: list[Row] = []
    for step, runs in ((step, runs) for segment, runs in plan.runs() for step in segment.steps):
        cost, seconds = step.cost, taken[step.operation.name]
        primitive = named(known, step.primitive)
        built_in = BUILT_IN.estimate(primitive, step.operation, step.shape_in, cost).seconds
        floor = ceilings.floor(cost)
        rows.append(
            {
                "layer": step.operation.name,
                "primitive": step.primitive,
                "input": str(step.shape_in),
                "runs": runs,
                "seconds": seconds,
                "share": seconds / total,
                "predicted_seconds": runs * step.seconds,
                "built_in_seconds": runs * built_in,
                "gflops": runs * cost.flops / seconds / 1e9,
                "gbytes": runs * cost.bytes_moved / seconds / 1e9,
                "floor_seconds": runs * floor.seconds,
                "bound": floor.bound,
                "achieved": floor.share(seconds / runs),
            }
        )
    whole = {name: sum(row[name] for row in rows) for name in ("floor_seconds", "built_in_seconds")}
    rows.append(
        {
            "layer": "all",
            "seconds": total,
            "share": 1.0,
            "predicted_seconds": plan.patch_seconds,
            "achieved": whole["floor_seconds"] / total,
            "voxels_per_s": plan.patch.volume / total,
            "peak_gib": patches.peak / 2**30,
            "declared_gib": plan.device_memory.total / 2**30,
            **whole,
        }
    )
    about = {
        "network": plan.network.name,
        "patch": str(plan.patch),
        "device": ceilings.device,
    }
    return [{**about, **row} for row in rows]
