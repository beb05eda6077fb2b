"""Which model of times the planner is given."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from planner.cost_model import BUILT_IN, FLOPS_AND_BYTES, NOT_HERE, BuiltInModel, CostModel
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase, Measurement
from znni.calibration.model import MeasuredModel
from znni.core.errors import InvalidInput, option
from znni.core.options import Costs
from znni.plans.primitive import Catalogue, Primitive

log = logging.getLogger("znni")


def cost_model(catalogue: Catalogue, costs: Costs = "auto", *, absent: bool = False) -> CostModel:
    """The model of what was measured on this machine, or the built-in one.

    Args:
        catalogue: the primitives that will be asked for.
        costs: ``auto`` takes what was measured, if anything was; where that cannot be read the
            built-in model says so.
        absent: the primitives are those of a machine that is not this one: what was measured
            here tells nothing of it, whatever its name.

    Raises:
        InvalidInput: ``measured`` costs are asked for, and there are none, they cannot be read,
            or the machine is absent.
    """
    if absent:
        if costs == "measured":
            raise InvalidInput(
                "measured costs hold for this machine, and the plan is for another; give "
                f"{option('costs', 'built-in')}"
            )
        return BuiltInModel(NOT_HERE)
    if costs == "built-in":
        return BuiltInModel(FLOPS_AND_BYTES)
    database = CostDatabase()
    try:
        found = list(measurements_of(catalogue, database))
    except InvalidInput as error:
        if costs == "measured":
            raise
        log.warning("%s", error)
        return BuiltInModel(f"{FLOPS_AND_BYTES}; {error}")
    if found:
        return MeasuredModel(found, catalogue)
    if costs == "measured":
        here = " and ".join(map(str, _conditions(catalogue)))
        on_gpu = any(primitive.device.kind == "gpu" for primitive in catalogue.values())
        how = option("device", "gpu") if on_gpu else "these threads"
        raise InvalidInput(
            f"{database.path}: nothing was measured yet on {here}; run znni calibrate with {how}, "
            f"or give {option('costs', 'built-in')}"
        )
    return BUILT_IN


def of_measured_devices(catalogue: Catalogue) -> dict[str, Primitive]:
    """The primitives of those devices of which anything was measured on this machine.

    Raises:
        InvalidInput: what was measured cannot be read.
    """
    measured = {catalogue[it.primitive].device for it in measurements_of(catalogue, CostDatabase())}
    return {name: found for name, found in catalogue.items() if found.device in measured}


def measurements_of(catalogue: Catalogue, database: CostDatabase) -> Iterator[Measurement]:
    """What was measured of these primitives on their devices, as they are now.

    Raises:
        InvalidInput: the database cannot be read.
    """
    for conditions in _conditions(catalogue):
        for measured in database.measured(conditions):
            primitive = catalogue.get(measured.primitive)
            if primitive and _is_of(measured, primitive):
                yield measured


def _is_of(measured: Measurement, primitive: Primitive) -> bool:
    """Whether a measurement of that name tells something of the primitive as it is now."""
    return (
        measured.version == primitive.version
        and primitive.out_shape(measured.operation, measured.shape) is not None
    )


def _conditions(catalogue: Catalogue) -> list[Conditions]:
    """Of each device that the primitives run on."""
    return sorted({Conditions.of(primitive.device) for primitive in catalogue.values()})
