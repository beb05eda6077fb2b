"""What the attributes of an output tell: how it came to be, and where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from znni import __version__
from znni.engine.tiles import Job
from znni.job_seconds import JobSeconds
from znni.options import OutputType
from znni.planning import accuracy_of
from znni.plans import Plan
from znni.volume import Grid
from znni.weights import Weights


def provenance(
    plan: Plan,
    weights: Weights,
    job: Job,
    source: object,
    command: str,
    dtype: OutputType,
) -> dict[str, Any]:
    """How an output came to be, for its attributes."""
    return {
        "znni_version": __version__,
        "command": command,
        "source": str(source) if isinstance(source, str | Path) else type(source).__name__,
        "network": plan.network.name,
        "accuracy": accuracy_of(plan),
        "weights": weights.source,
        "weights_sha256": weights.sha256,
        "voxel_offset": tuple(job.center),
        "scale": 1 / 255 if dtype == "uint8" else 1.0,
        "predicted_seconds": plan.seconds,
        "predicted_error": plan.error,
        "predicted_memory_bytes": plan.memory.total,
        "predicted_gpu_memory_bytes": plan.gpu_memory.total if plan.gpu_memory else 0,
        **plan.time.of_job(plan.patches).named("predicted_"),
        **as_run([plan], JobSeconds(), 0),  # known at the end
    }


def as_run(plans: Sequence[Plan], spent: JobSeconds, peak: int) -> dict[str, Any]:
    """What attributes of an output tell of the run, from the plans that it went through."""
    return {
        "plan": plans[-1].to_json(),
        "fallbacks": len(plans) - 1,
        **measured(spent, peak),
    }


def measured(spent: JobSeconds, peak: int) -> dict[str, Any]:
    """What the last of the runs that an output took measured: the same run again gives others."""
    return {"seconds": spent.total, **spent.named(), "peak_memory_bytes": peak}


def placed(grid: Grid) -> dict[str, Any]:
    """Where an output's voxels lie, for its attributes, if anything is known of that."""
    known = {"voxel_size": grid.scale, "voxel_origin": grid.translation}
    return known if grid.scale != (1.0, 1.0, 1.0) or any(grid.units) else {}
