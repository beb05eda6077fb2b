"""Plans for workers that share one output."""

from __future__ import annotations

from dataclasses import replace

from znni.cluster.blocks import box_of
from znni.core.shapes import Vec3
from znni.inference import planning
from znni.inference.plan_choice import machine_here
from znni.inference.request import OpenRequest, Requirements
from znni.machine.machine import Machine
from znni.plans.plan import Plan

BLOCKS_A_WORKER = 20  # at least, so that workers end at about the same time
FEW_BLOCKS_A_WORKER = 4  # where smaller blocks would waste too much on their borders
ALTERNATIVES = 16  # plans for one block, among which is the fastest for many blocks


def steady_plan(required: Requirements, block: Vec3, machine: Machine) -> Plan:
    """Return the plan for a block that is fastest if one block follows another.

    The fastest plan for a single block often has smaller patches, so that its first patch is read
    and its last one written sooner.
    """
    search = planning.search_for(required, machine)
    search = replace(search, output=block, sweeps=machine.used_gpus <= 1)
    plans = planning.fastest(search, ALTERNATIVES)
    return min(plans, key=lambda plan: plan.patches * plan.time.between)


def plan_to_share(alone: Plan, workers: int, asked: OpenRequest) -> Plan:
    """Return the plan with which several workers like this one end soonest.

    Its patches are the blocks that workers are given. The fastest plan for one worker may have a
    single patch, which would leave all others idle. Workers with several GPUs each do not sweep:
    the blocks of a column come to one worker, and each of its GPUs would get some of them.
    """
    job, machine = asked.job, machine_here(asked.choices)
    plans = [] if alone.is_swept and alone.workers > 1 else [alone]
    for blocks in (BLOCKS_A_WORKER, FEW_BLOCKS_A_WORKER):
        box = box_of(job.output.volume / (blocks * workers), job.output)
        found = steady_plan(asked, box, machine)
        plans.append(replace(found, output=job.output))

    def seconds(plan: Plan) -> float:
        rounds = -(-plan.patches // workers)
        return plan.time.once + rounds * plan.time.between

    return min(plans, key=seconds)
