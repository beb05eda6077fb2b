"""The runner of a worker process, made without the modules that plan."""

from __future__ import annotations

from znni.core.option_types import OutputType
from znni.core.processors import GPU
from znni.engine.patch_runner import PatchRunner
from znni.network.weights import Weights
from znni.plans.plan import Plan
from znni.primitives.catalogue import catalogue


def prepare_on_gpu(plan: Plan, weights: Weights, dtype: OutputType) -> PatchRunner:
    """Prepare a plan that runs only on a GPU, in a worker process of its own.

    Arguments and errors are those of ``znni.inference.build_runner.prepare_alone``.
    """
    return PatchRunner(plan, catalogue(plan.machine, GPU), weights, dtype=dtype)
