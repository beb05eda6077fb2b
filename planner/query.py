"""The question of a search, for searches that have begun and for those that have not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.cost_model import BUILT_IN, CostModel
from planner.overhead import Overhead
from znni.core.options import DeviceChoice, Division
from znni.core.shapes import Vec3
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.primitive import Catalogue

if TYPE_CHECKING:
    from planner.partition import CutPoint


@dataclass(eq=False)
class Query:
    """The question of a search: which plan is the fastest.

    Attributes:
        given: the network.
        output: the extents of the output.
        machine: the machine, whose memory is the limit.
        catalogue: the primitives to choose from.
        overhead: the memory and time that a run takes beside its layers.
        model: the model that predicts the times of the primitives.
        division: the sizes of the pieces that a layer's batch may be computed in.
        device: the device for the layers. It is ``cpu``, ``gpu``, some layers on each
            (``cpu+gpu``), or whatever is fastest.
        allowed_cut_points: the only cut points to try; None for all.
    """

    given: Network
    output: Vec3
    machine: Machine
    catalogue: Catalogue
    overhead: Overhead
    model: CostModel = BUILT_IN
    division: Division = "power-of-two"
    device: DeviceChoice = "auto"
    allowed_cut_points: frozenset[CutPoint] | None = field(default=None, init=False)
