"""The least times that calls may take within the error of their prediction."""

from __future__ import annotations

from math import exp

from planner.cost_model import CostModel, Factor, Factors
from znni.calibration.model import MeasuredModel
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.primitive import Primitive


class OptimisticModel(CostModel):
    """The times of measured calls, and the least times of others within their expected error.

    If the fastest plan by this model has only measured calls, no other plan is likely to be faster.

    Args:
        model: the model that predicts times and their errors.
    """

    def __init__(self, model: MeasuredModel) -> None:
        self.source = model.source
        self._model = model
        self._factors: dict[Factors, Factors] = {}

    def factors(self, operation: Operation, shape: Shape5) -> Factors:
        """Return the function from a primitive to its factor for one call."""
        expected = self._model.factors(operation, shape)  # the same function for calls alike
        if expected not in self._factors:
            self._factors[expected] = self._least(expected, Call(operation, shape))
        return self._factors[expected]

    def _least(self, expected: Factors, call: Call) -> Factors:
        """Return the least factors within the errors of expected ones, for calls like one."""
        known: dict[str, Factor] = {}

        def factor(primitive: Primitive) -> Factor:
            if primitive.name not in known:
                least = expected(primitive)
                if not self._model.is_sure(primitive, call):
                    least = least._replace(times=least.times * exp(-least.error))
                known[primitive.name] = least
            return known[primitive.name]

        return factor
