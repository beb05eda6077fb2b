"""Cost models: the protocol that the search uses, and the built-in model of flops and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.cost import Cost
from znni.plans.nominal_time import nominal_time
from znni.plans.primitive import Primitive

CALL_SECONDS = 6e-5  # Python's overhead of a call of any size, without handing out tasks
GPU_CALL_SECONDS = 1e-5  # the start of a few kernels

# The error is 0.21 over 544 layers on the machine where the primitives' efficiencies were measured
# (bench/results/layers-*.json). It is larger here, because other machines differ in caches and
# clocks.
BUILT_IN_ERROR = 0.3

FLOPS_AND_BYTES = "a model of flops and bytes"
NOT_MEASURED = f"{FLOPS_AND_BYTES}, not yet measured on this machine"
NOT_HERE = f"{FLOPS_AND_BYTES}, for a machine that is not this one"


class Estimate(NamedTuple):
    """The predicted time of one call.

    Attributes:
        seconds: the predicted seconds, a positive number.
        error: the expected error, root mean square, as a share of the seconds.
    """

    seconds: float
    error: float


class CostModel(Protocol):
    """A model of times. The planner knows nothing else about where times come from."""

    @property
    def source(self) -> str:
        """The origin of the model's numbers, for reports."""

    @property
    def follows_costs(self) -> bool:
        """True if all times are those of ``nominal_time``, and a constant for each call."""

    def estimate(
        self, primitive: Primitive, operation: Operation, shape: Shape5, cost: Cost
    ) -> Estimate:
        """Return the time of one call of a primitive that applies.

        Args:
            primitive: the primitive that is called.
            operation: the operation that it computes.
            shape: the shape of the input.
            cost: the cost that the primitive declares for the operation and shape.
        """


@dataclass(frozen=True)
class BuiltInModel:
    """The times from declared flops, bytes and tasks, at the nominal rates of the device."""

    source: str = NOT_MEASURED
    follows_costs = True

    def estimate(
        self,
        primitive: Primitive,
        operation: Operation,  # noqa: ARG002 - the cost already reflects operation and shape
        shape: Shape5,  # noqa: ARG002
        cost: Cost,
    ) -> Estimate:
        """Return the nominal time plus the time to start the call."""
        call = CALL_SECONDS if primitive.device.kind == "cpu" else GPU_CALL_SECONDS
        return Estimate(call + nominal_time(primitive, cost), BUILT_IN_ERROR)


BUILT_IN = BuiltInModel()
