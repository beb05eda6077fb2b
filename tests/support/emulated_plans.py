"""Plans of tiled networks for the emulated GPU."""

from __future__ import annotations

from collections.abc import Callable

from emulated_gpu import EMULATED

from planner.cost_model import BUILT_IN
from planner.search import Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.option_types import Accuracy, Border
from znni.core.shapes import Vec3
from znni.engine.tiles import for_job, make_job
from znni.machine.machine import Device, Machine
from znni.network.network import Network
from znni.plans.accuracy import filter_by_class
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, on_device
from znni.plans.rewrites.split_convolution import split, splittable
from znni.primitives.catalogue import catalogue

# Primitives that call libraries, or that are for other layers.
LEFT_OUT = ("gpu_cudnn", "gpu_fft", "arranged_gpu_cudnn")

MACHINE = Machine(Device("cpu", "host", 2**34, 2, flops=1e11, bandwidth=1e10), (EMULATED,))


def primitives(chosen: Callable[[str], bool] = lambda _: True) -> Catalogue:
    """Those of the emulated GPU whose names are chosen."""
    found = on_device(catalogue(MACHINE), "gpu")
    return {
        name: it for name, it in found.items() if not name.startswith(LEFT_OUT) and chosen(name)
    }


# For each class of accuracy, the error of a whole network that tests accept.
ERRORS: dict[Accuracy, float] = {"tf32": 2e-3, "float32": 3e-5}


def mostly_packed(accuracy: Accuracy) -> Catalogue:
    """The primitives of a class for which packed values are fastest."""
    unpacked = "gpu_direct_tensor", "gpu_direct", "gpu_lowered"
    known = primitives(lambda name: not name.startswith(unpacked) or name.endswith("float16"))
    return filter_by_class(known, accuracy)


def plan_for(
    network: Network,
    size: Vec3,
    patch: Vec3,
    known: Catalogue,
    border: Border = "same",
    splits: bool = False,
) -> Plan:
    pad = "constant" if border == "same" else None
    job = make_job(network, size, border, pad, None)
    placed = for_job(network, job)
    if splits:
        placed = split(placed, splittable(placed))
    search = Search(
        placed, job.output, MACHINE, known, run_overhead(MACHINE), BUILT_IN, "none", "gpu"
    )
    plan = search.fastest_for(patch)
    assert plan is not None
    assert Plan.from_json(plan.to_json()) == plan
    return plan
