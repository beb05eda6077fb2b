"""The size, the memory and the time of a case before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from znni.cases.case import Case, check_output, running, stored_values
from znni.cases.networks import NetworkSet, alone, beside_weights
from znni.cases.preparation import (
    Preparation,
    preparation_of_all,
    preparing_bytes,
    unit_of,
)
from znni.cases.scan import look_at_scan
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.core.text import counted, duration, in_units
from znni.inference.exporting import LABELS_ROOM
from znni.inference.plan_choice import machine_here
from znni.inference.planning import plan
from znni.network.network import Network
from znni.plans.plan import Plan


@dataclass(frozen=True)
class CaseForecast:
    """The size, the memory and the time of a case. A scan that is cropped takes less.

    Attributes:
        scan: the extents of the scan.
        input: the extents of the network's input; of several networks, the largest.
        plans: the plan of each network.
        preparing: the peak bytes on the host while the scan is prepared.
        others: the bytes of the weights of other networks, while one is computed.
    """

    scan: Vec3
    input: Vec3
    plans: tuple[Plan, ...]
    preparing: int
    others: int = 0

    @property
    def computing(self) -> int:
        """The peak bytes on the host while a network is computed."""
        return self.others + max(plan.memory.total for plan in self.plans)

    @property
    def memory(self) -> int:
        """The peak bytes on the host."""
        return max(self.preparing, self.computing) + LABELS_ROOM

    def __str__(self) -> str:
        """Return sizes, memory and time in words, without the plans."""
        largest = f"the largest of {counted(len(self.plans), 'network')}"
        said = (
            f"the scan has {self.scan} voxels, and the network's input at most {self.input}\n"
            f"memory        at most {in_units(self.memory)}: {in_units(self.preparing)} to prepare "
            f"the scan, {in_units(self.computing)} for "
        )
        if len(self.plans) == 1:
            return f"{said}the network"
        seconds = sum(plan.seconds for plan in self.plans)
        return f"{said}{largest}\ntime          {duration(seconds)} for all networks together"


def forecast(
    case: Case, networks: Network | NetworkSet, options: Options = Options()
) -> CaseForecast:
    """Predict the size, the memory and the time of a case from the headers of its files.

    Args:
        case: the case.
        networks: the networks, whose files describe whole cases.
        options: what plans may use.

    Raises:
        InvalidInput: the scan, a network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
    """
    asked = alone(networks) if isinstance(networks, Network) else networks
    check_output(case)
    scan = look_at_scan(case.files, asked.rules, unit_of(asked.networks[0]))
    prepared = [preparation_of_all(scan, network) for network in asked.networks]
    options, others = beside_weights(options, asked)
    plans = tuple(_plan(each, options) for each in prepared)
    threads = machine_here(options.limits).host.threads
    preparing = plans[0].memory.process + max(preparing_bytes(it, threads) for it in prepared)
    largest = max((each.image.target for each in prepared), key=lambda size: size.volume)
    return CaseForecast(scan.volume.size, largest, plans, preparing, others)


def _plan(prepared: Preparation, options: Options) -> Plan:
    """Return the plan of a network."""
    stored = stored_values(prepared.network)
    return plan(
        running(prepared),
        prepared.image.target,
        labels=stored.labels,
        threshold=stored.threshold,
        **vars(options.limits),
    )
