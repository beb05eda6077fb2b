"""The patch runner: it takes patches through a plan's layers on the host, on a GPU, or on both."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from znni.core.option_types import OutputType
from znni.engine.backends.registry import PartRunner, PartToRun, backend_of
from znni.engine.block import Block, ComputeStage, alone, one_stage
from znni.engine.checks import check_runnable
from znni.engine.executor import Measured, not_measured
from znni.engine.labels import Labels
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Allocate
from znni.network.weights import Float32, Weights, conv_weights
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.rewrites.network_rules import weights_after_rules


def allocator_for(plan: Plan) -> Allocate:
    """Return what gives the arrays that patches of a plan are read into."""
    return backend_of(plan.device_of(plan.parts[0])).allocator(plan)


class PatchRunner:
    """A runner of patches through a plan, with everything prepared that can be prepared once.

    Args:
        plan: the plan.
        catalogue: the primitives that it names.
        weights: the weights of the network as it was given.
        measured: the function that takes the seconds of each step, after it is done.
        dtype: the type of output of a backend that converts it; others give float32.

    Raises:
        InvalidInput: the primitives are not those of the plan.
        RunFailed: the GPU does not have enough memory, or it fails in another way.
    """

    def __init__(
        self,
        plan: Plan,
        catalogue: Catalogue,
        weights: Weights,
        measured: Measured = not_measured,
        dtype: OutputType = "float32",
    ) -> None:
        check_runnable(plan, catalogue)
        self.plan = plan
        head = plan.network.head
        applied = conv_weights(head, weights[head.name]) if head else None
        parameters = weights_after_rules(plan.network, weights)

        def runner_of(part: DevicePart) -> PartRunner:
            wanted = PartToRun(plan, part, catalogue, parameters, measured, dtype, applied)
            return backend_of(plan.device_of(part)).part_runner(wanted)

        self._parts = [runner_of(part) for part in plan.parts]

    def __call__(self, patch: Float32 | Block) -> NDArray[Any]:
        """Return the dense output (f', Z, Y, X) of a block, or of one input patch (f, z, y, x)."""
        block = patch if isinstance(patch, Block) else alone(patch)
        for work in self.stages(Stopwatch()):
            block = block.through(work)
        dense: NDArray[Any] = block.values
        return dense

    def stages(self, stopwatch: Stopwatch, labels: Labels | None = None) -> list[ComputeStage]:
        """Return the stages of each part in order, as every ``PatchStages`` does.

        If the parts take turns, all their stages are one stage. A GPU makes labels itself.
        """
        stages = [work for part in self._parts for work in part.stages(stopwatch, labels)]
        return [one_stage(stages)] if self.plan.time.in_turn else stages
