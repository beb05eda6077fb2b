"""A search whose modules are loaded when it begins: a run by a kept plan needs none of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeAlias, Union

from planner.cost_model import CostModel
from planner.overhead import Overhead
from znni.core.options import DeviceChoice, Division
from znni.core.shapes import Vec3
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.primitive import Catalogue

if TYPE_CHECKING:
    from planner.exhaustive import Search
    from planner.partition import CutPoint


@dataclass(frozen=True, eq=False)
class LateSearch:
    """A search that may begin.

    Attributes:
        given: the network.
        output: the extents of the output.
        machine: the machine, whose memory is the limit.
        catalogue: the primitives to choose from.
        overhead: the memory and time that a run takes beside its layers.
        model: the model that predicts the times of the primitives.
        division: the sizes of the pieces that a layer's batch may be computed in.
        device: the device for the layers.
        allowed_cut_points: None: all of them.
    """

    given: Network
    output: Vec3
    machine: Machine
    catalogue: Catalogue
    overhead: Overhead
    model: CostModel
    division: Division
    device: DeviceChoice
    allowed_cut_points: ClassVar[frozenset[CutPoint] | None] = None

    @cached_property
    def begun(self) -> Search:
        """The search itself."""
        from planner.exhaustive import Search

        return Search(
            self.given, self.output, self.machine, self.catalogue, self.overhead, self.model,
            self.division, self.device,
        )  # fmt: skip

    @property
    def calls(self) -> int:
        """The number of prices worked out so far."""
        return self.begun.calls if "begun" in vars(self) else 0


AnySearch: TypeAlias = Union["Search", LateSearch]


def begun(search: AnySearch) -> Search:
    """Return a search that begins now, if it has not begun."""
    return search.begun if isinstance(search, LateSearch) else search
