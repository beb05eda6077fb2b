"""The models of all stages, in the order in which a block goes through them."""

from __future__ import annotations

from znni.core.options import Stored
from znni.engine.stages import (
    blend,
    convert,
    download,
    label,
    layers,
    read,
    share,
    upload,
    write,
)
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.stage import StageModel

STAGES = (read, share, upload, layers, blend, download, label, convert, write)


def stage_models(
    machine: Machine, stored: Stored, measured: HandlingTimes | None
) -> tuple[StageModel, ...]:
    """Return the models of all stages.

    Args:
        machine: the machine.
        stored: how values are stored at both ends of the run.
        measured: measured times of the machine, if there are any.
    """
    return tuple(stage.model(machine, stored, measured) for stage in STAGES)
