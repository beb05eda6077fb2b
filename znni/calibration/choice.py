"""Choosing the model of times for the planner."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from planner.cost_model import BUILT_IN, NOT_HERE, BuiltInModel, CostModel
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase, Measurement
from znni.calibration.model import MeasuredModel
from znni.core.errors import InvalidInput, option
from znni.core.option_types import Costs
from znni.core.processors import GPU
from znni.plans.band import FLOPS_AND_BYTES
from znni.plans.primitive import Among, Catalogue, Primitive, devices_of

log = logging.getLogger("znni")


def cost_model(catalogue: Catalogue, costs: Costs = "auto", *, absent: bool = False) -> CostModel:
    """Return the model of this machine's measured times, or the built-in one.

    Args:
        catalogue: primitives that the model must predict.
        costs: source of times. ``auto`` uses measurements if there are any. If they cannot be read,
            it uses the built-in model, whose ``source`` says why.
        absent: the primitives belong to another machine. Measurements of this one say nothing about
            it, even if the names agree.

    Raises:
        InvalidInput: ``measured`` costs are required, but there are none, they cannot be read, or
            the machine is absent.
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
        on_gpu = any(primitive.device.has_own_memory for primitive in catalogue.values())
        how = option("device", GPU) if on_gpu else "these threads"
        raise InvalidInput(
            f"{database.path}: nothing was measured yet on {here}; run znni calibrate with {how}, "
            f"or give {option('costs', 'built-in')}"
        )
    return BUILT_IN


def of_measured_devices(catalogue: Catalogue) -> Catalogue:
    """Return the primitives of all devices that have measurements here; all if no device has any.

    Raises:
        InvalidInput: the measurements cannot be read.
    """
    measured = {catalogue[it.primitive].device for it in measurements_of(catalogue, CostDatabase())}
    kinds = sorted({device.kind for device in measured})
    if not kinds:
        return catalogue
    source = f"measured on {' and '.join(kinds)}"
    return Among(catalogue, lambda found: found.device in measured, source, kinds)


def measurements_of(catalogue: Catalogue, database: CostDatabase) -> Iterator[Measurement]:
    """Yield the measurements of these primitives on their devices, if they are still valid.

    Raises:
        InvalidInput: the database cannot be read.
    """
    for conditions in _conditions(catalogue) if database.there else ():
        for measured in database.measured(conditions):
            primitive = catalogue.get(measured.primitive)
            if primitive and _is_of(measured, primitive):
                yield measured


def _is_of(measured: Measurement, primitive: Primitive) -> bool:
    """Return whether a measurement is still valid for the primitive of its name."""
    return (
        measured.version == primitive.version
        and primitive.out_shape(measured.operation, measured.shape) is not None
    )


def _conditions(catalogue: Catalogue) -> list[Conditions]:
    """Return the conditions of each device that the primitives run on."""
    return sorted({Conditions.of(device) for device in devices_of(catalogue)})
