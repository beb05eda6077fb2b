"""The size and the memory of a case, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from znni.cases.case import Case, check_output, running
from znni.cases.preparation import preparation_of_all, preparing_bytes, rules_of, unit_of
from znni.cases.scan import look_at_scan
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.core.text import in_units
from znni.inference.exporting import LABELS_ROOM
from znni.inference.plan_choice import machine_here
from znni.inference.planning import plan
from znni.network.network import Network
from znni.plans.plan import Plan


@dataclass(frozen=True)
class CaseForecast:
    """The size and the memory of a case before it runs. A scan that is cropped takes less.

    Attributes:
        scan: the extents of the scan.
        input: the extents of the network's input.
        plan: the plan of the network.
        preparing: the peak bytes on the host while the scan is prepared.
    """

    scan: Vec3
    input: Vec3
    plan: Plan
    preparing: int

    @property
    def memory(self) -> int:
        """The peak bytes on the host."""
        return max(self.preparing, self.plan.memory.total) + LABELS_ROOM

    def __str__(self) -> str:
        """Return sizes and memory in words, without the plan."""
        return (
            f"the scan has {self.scan} voxels, and the network's input at most {self.input}\n"
            f"memory        at most {in_units(self.memory)}: {in_units(self.preparing)} to prepare "
            f"the scan, {in_units(self.plan.memory.total)} for the network"
        )


def forecast(case: Case, network: Network, options: Options = Options()) -> CaseForecast:
    """Predict the size and the memory of a case from the headers of its files.

    Args:
        case: the case.
        network: the network, whose file describes whole cases.
        options: what plans may use.

    Raises:
        InvalidInput: the scan, the network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
    """
    check_output(case)
    scan = look_at_scan(case.files, rules_of(network), unit_of(network))
    prepared = preparation_of_all(scan, network)
    found = plan(running(prepared), prepared.image.target, labels=True, **vars(options.limits))
    threads = machine_here(options.limits).host.threads
    preparing = found.memory.process + preparing_bytes(prepared, threads)
    return CaseForecast(scan.volume.size, prepared.image.target, found, preparing)
