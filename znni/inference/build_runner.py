"""Preparation of a plan to run on this machine, in this process or in several."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from znni.core.option_types import OutputType
from znni.engine.backends.registry import backend_of
from znni.engine.executor import Measured, not_measured
from znni.engine.patch_runner import PatchRunner, allocator_for
from znni.engine.pipeline import PreparedHere, PreparedPlan
from znni.inference.planning import primitives_of, shared_out
from znni.machine.gpus_option import seeing_only
from znni.network.weights import Weights
from znni.plans.plan import Plan
from znni.plans.stored_values import AS_COMPUTED, Stored

if TYPE_CHECKING:
    from znni.engine.workers.processes import WaitingProcesses


def prepare(
    plan: Plan,
    weights: Weights,
    measured: Measured = not_measured,
    stored: Stored = AS_COMPUTED,
    waiting: WaitingProcesses | None = None,
) -> PreparedPlan:
    """Prepare a plan to run on this machine, in this process or in one process for each GPU.

    Args:
        plan: the plan to run.
        weights: parameters of the plan's network.
        measured: function called after each call of a step in this process.
        stored: how values are stored at both ends.
        waiting: processes for several GPUs that have started already (``several_waiting``).

    Raises:
        RunFailed: a process of a GPU cannot start. ``run_volume`` raises all other errors, because
            layers are made ready while it reads the first blocks.
    """
    if plan.workers == 1:
        make = partial(prepare_alone, plan, weights, measured, stored.dtype)
        return PreparedHere(plan, make, allocator_for(plan))
    from znni.engine.workers.fleet import Fleet, Member  # few runs need other processes
    from znni.inference.worker_runner import prepare_on_gpu

    members = []
    for gpu in plan.machine.gpus[: plan.workers]:
        network = shared_out(plan.network, plan.workers)
        machine = replace(plan.machine, gpus=(gpu,), used_gpus=1)
        alone = replace(plan, network=network, machine=machine)
        make = partial(prepare_on_gpu, alone, weights, dtype=stored.dtype)
        members.append(Member(f"the worker of GPU {gpu.number}", make, seeing_only(gpu.number)))
    return Fleet(plan, members, stored, waiting)


def prepare_alone(
    plan: Plan, weights: Weights, measured: Measured = not_measured, dtype: OutputType = "float32"
) -> PatchRunner:
    """Prepare a plan to run in this process, with the arguments of ``prepare``.

    Raises:
        RunFailed: a GPU fails, lacks memory, or is not the one planned for.
    """
    if plan.gpu_memory:
        backend_of(plan.gpu).check()
    catalogue = primitives_of(plan.network, plan.machine)
    runner = PatchRunner(plan, catalogue, weights, measured, dtype)
    weights.give_back()  # most primitives have made arrays of their own
    return runner
