"""Steps of blocks in which chosen layers are one step, whatever it takes."""

from __future__ import annotations

from collections.abc import Iterable

from znni.plans.rewrites.block_steps import BlockSteps
from znni.plans.rewrites.fusion import Fusion


def with_fusions(steps: BlockSteps, fusible: Iterable[Fusion]) -> BlockSteps:
    """Return steps in which each fusion is one step if its values lie as they must."""
    for fusion in fusible:
        if rewrite := steps.fused(fusion):
            steps = steps.after(rewrite)
    return steps
