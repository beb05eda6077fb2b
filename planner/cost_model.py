"""How long a primitive takes: what the search asks of a model, and the one of flops and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from znni.core.shapes import Shape5
from znni.network.network import Operation
from znni.plans.cost import Cost
from znni.plans.nominal_time import nominal_time
from znni.plans.primitive import Primitive

CALL_SECONDS = 6e-5  # Python's beside what it hands out, whatever the size
GPU_CALL_SECONDS = 1e-5  # starting a few kernels

# On the machine that the primitives' efficiencies were measured on it is 0.21, over 544 layers
# (bench/results/layers-*.json); others have other caches and clocks.
BUILT_IN_ERROR = 0.3

FLOPS_AND_BYTES = "a model of flops and bytes"
NOT_MEASURED = f"{FLOPS_AND_BYTES}, not yet measured on this machine"
NOT_HERE = f"{FLOPS_AND_BYTES}, for a machine that is not this one"


class Estimate(NamedTuple):
    """The predicted time of one call.

    Attributes:
        seconds: positive.
        error: to be expected, root mean square, as a share of the seconds.
    """

    seconds: float
    error: float


class CostModel(Protocol):
    """Predicts times; all that the planner knows of where they come from."""

    @property
    def source(self) -> str:
        """Where its numbers come from, for reports."""

    def estimate(
        self, primitive: Primitive, operation: Operation, shape: Shape5, cost: Cost
    ) -> Estimate:
        """The time of one call of a primitive that applies.

        Args:
            primitive: what is called.
            operation: what it computes.
            shape: of the input.
            cost: what the primitive declares for them.
        """


@dataclass(frozen=True)
class BuiltInModel:
    """Times from declared flops, bytes and tasks, and the nominal rates of the device."""

    source: str = NOT_MEASURED

    def estimate(
        self,
        primitive: Primitive,
        operation: Operation,  # noqa: ARG002 - it and the shape are in the cost
        shape: Shape5,  # noqa: ARG002
        cost: Cost,
    ) -> Estimate:
        """The nominal time, and that of starting."""
        call = CALL_SECONDS if primitive.device.kind == "cpu" else GPU_CALL_SECONDS
        return Estimate(call + nominal_time(primitive, cost), BUILT_IN_ERROR)


BUILT_IN = BuiltInModel()
