"""Cost models: what the search asks of them, and the built-in model of flops and bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.band import BUILT_IN_ERROR, FLOPS_AND_BYTES
from znni.plans.cost import Cost
from znni.plans.nominal_time import nominal_time
from znni.plans.primitive import Primitive

CALL_SECONDS = 6e-5  # Python's overhead of a call of any size, without handing out tasks
GPU_CALL_SECONDS = 1e-5  # the start of a few kernels

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


class Factor(NamedTuple):
    """The predicted time of a call over its nominal time.

    Attributes:
        times: the predicted seconds over the nominal ones, a positive number.
        error: the expected error, root mean square, as a share of the seconds.
    """

    times: float
    error: float


Factors: TypeAlias = Callable[[Primitive], Factor]
AS_SAID = Factor(1.0, BUILT_IN_ERROR)


class CostModel(ABC):
    """A model of times: nominal times, and factors by which calls take longer.

    The planner knows nothing else about where times come from.

    Attributes:
        source: the origin of the model's numbers, for reports.
    """

    source: str

    @abstractmethod
    def factors(self, operation: Operation, shape: Shape5) -> Factors:
        """Return the function from a primitive to its factor for one call.

        The search relies on this: the images' extents do not count. Nor do the items, if a
        primitive takes its time per item (``TakesTimePerItem``). For other primitives, numbers of
        items give the same factor if their binary logarithms round to the same.

        Args:
            operation: the operation that is computed.
            shape: the shape of the input.
        """

    def estimate(
        self, primitive: Primitive, operation: Operation, shape: Shape5, cost: Cost
    ) -> Estimate:
        """Return the time of one call of a primitive that applies.

        A cost that says its own seconds is taken at its word: other devices take part.

        Args:
            primitive: the primitive that is called.
            operation: the operation that it computes.
            shape: the shape of the input.
            cost: the cost that the primitive declares for the operation and shape.
        """
        states_seconds = cost.seconds is not None
        factor = AS_SAID if states_seconds else self.factors(operation, shape)(primitive)
        return Estimate(factor.times * built_in_seconds(primitive, cost), factor.error)


def built_in_seconds(primitive: Primitive, cost: Cost) -> float:
    """Return the seconds of a call at the nominal rates of its device, with those to start it."""
    call = GPU_CALL_SECONDS if primitive.device.has_own_memory else CALL_SECONDS
    return call + nominal_time(primitive, cost)


@dataclass(frozen=True)
class BuiltInModel(CostModel):
    """The times from declared flops, bytes and tasks, at the nominal rates of the device."""

    source: str = NOT_MEASURED

    def factors(
        self,
        operation: Operation,  # noqa: ARG002 - the cost already reflects operation and shape
        shape: Shape5,  # noqa: ARG002
    ) -> Factors:
        """Return the factor of 1 for all primitives."""
        return _as_said


def _as_said(_primitive: Primitive) -> Factor:
    return AS_SAID


BUILT_IN = BuiltInModel()
