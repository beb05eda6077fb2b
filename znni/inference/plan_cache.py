"""Plans that were found before, kept in the user's cache by everything that they depend on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import NamedTuple

from planner.cost_model import BuiltInModel
from planner.limits import time_of_run
from planner.search import Search
from znni.calibration.model import MeasuredModel
from znni.core import version
from znni.core.processors import may_use_gpu, may_use_host
from znni.core.user_cache import state_of_source
from znni.core.value_cache import load_value, store_value
from znni.inference.text_cache import plans_folder
from znni.machine.machine import Machine
from znni.network.models import Model
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, cache_key_of
from znni.plans.rewrites.network_rules import rewritten_alike
from znni.plans.segments import Step
from znni.plans.step_primitive import find_primitive


class _CachedPlan(NamedTuple):
    """A cached plan, and the limits of the search that found it.

    Attributes:
        host: the bytes that it was allowed on the host.
        gpu: the bytes that it was allowed on the GPU; 0 without one.
    """

    plan: Plan
    host: int
    gpu: int


def fastest_cached_or_found(search: Search) -> tuple[Plan, bool]:
    """Return the fastest plan of a search, and whether it was in the cache.

    A plan that is fastest under more memory is also fastest under less, if it fits. So it is taken
    as it is. Else the fastest cached plan that fits is where the search begins.

    Raises:
        DoesNotFit: no plan fits.
    """
    place = _place(search)
    if place is None:
        return search.fastest()[0], False
    folder, key = place
    like = list(_like(folder, key, search))
    host, gpu = _limits(search.machine)
    for it in like:
        if it.host >= host and it.gpu >= gpu:
            return it.plan, True
    known = min((it.plan for it in like), key=lambda plan: plan.seconds, default=None)
    found = search.fastest(known=known)[0]
    store_plan(found, search)
    return found, False


def smallest_cached_or_found(search: Search) -> Plan:
    """Return the plan of a search that takes the least memory, from the cache if it is there.

    Raises:
        InvalidInput: the primitives cannot compute the smallest patch.
    """
    place = _place(search)
    if place is None:
        return search.smallest()
    path = _file(*place, search, "smallest-")
    known = load_value(path, Plan)
    if known and all(_is_known(step, search.catalogue) for step in known.steps):
        return known
    found = search.smallest()
    store_value(path, found)
    return found


def store_plan(plan: Plan, search: Search) -> None:
    """Keep the fastest plan of a search, for searches that are alike."""
    if place := _place(search):
        store_value(_file(*place, search), plan)


def _place(search: Search) -> tuple[Path, str] | None:
    """Return the folder and the key of a search's plans; None if they are not kept."""
    key, folder = _key(search), plans_folder()
    return None if key is None or folder is None else (folder, key)


def _file(folder: Path, key: str, search: Search, kind: str = "") -> Path:
    """Return the file of a plan that was found within the memory of a search."""
    host, gpu = _limits(search.machine)
    return folder / f"{kind}{key}-{host}-{gpu}.plan"


def _like(folder: Path, key: str, search: Search) -> Iterator[_CachedPlan]:
    """Yield the cached plans of searches that differ at most in memory, if they fit this one.

    A file that holds no such plan is left out.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.startswith(f"{key}-"))
    except OSError:  # there is none yet, or it cannot be read; then none is kept either
        return
    for path in paths:
        try:
            host, gpu = map(int, path.stem.split("-")[1:])
        except ValueError:
            continue
        if (plan := load_value(path, Plan)) is None:
            continue
        network = rewritten_alike(search.given, plan.network).computed_as(plan.network)
        plan = replace(plan, network=network, machine=search.machine)
        # The seconds to start a GPU may have been others.
        time = time_of_run(network, plan.patch, plan.parts, search.overhead)
        plan = replace(plan, time=time)
        if _is_of(plan, search):
            yield _CachedPlan(plan, host, gpu)


def _is_of(plan: Plan, search: Search) -> bool:
    """Return whether a plan is one of those that a search may find, within its memory."""
    fits = all(memory.total <= device.memory for memory, device in plan.limits.values())
    known = all(_is_known(step, search.catalogue) for step in plan.steps)
    return fits and known and plan.output == search.output


def _is_known(step: Step, catalogue: Catalogue) -> bool:
    """Return whether this machine has a step's primitive, and the step's memory is still enough.

    Models of other libraries are measured again if the user's cache has lost the measurement.
    """
    primitive = find_primitive(catalogue, step.primitive)
    if primitive is None or not isinstance(step.operation, Model):
        return primitive is not None
    return primitive.cost(step.operation, step.shape_in).memory.within(step.cost.memory)


def _limits(machine: Machine) -> tuple[int, int]:
    return machine.host.memory, machine.gpus[0].memory if machine.gpus else 0


def _key(search: Search) -> str | None:
    """Return a hash of all that the fastest plan depends on.

    The memory of host and GPU are not part of it. It is None if the model of times or the catalogue
    is unknown.
    """
    if (primitives := cache_key_of(search.catalogue)) is None:
        return None
    match search.model:
        case BuiltInModel():
            times = repr(search.model)
        case MeasuredModel():
            times = search.model.fingerprint
        case _:
            return None
    scaling = replace(search.given.scaling, statistics=())
    machine, overhead = search.machine, search.overhead
    if not may_use_host(search.device):
        # Each plan takes as much longer, and none touches the host's memory.
        overhead = replace(overhead, warm=inf, once=replace(overhead.once, cuda=0.0))
    parts: list[object] = [
        replace(search.given, scaling=scaling),
        search.output,
        replace(
            machine,
            host=replace(machine.host, memory=0),
            gpus=tuple(replace(gpu, memory=0) for gpu in machine.gpus),
        ),
        primitives,
        overhead,
        times,
        search.division,
        search.device,
        search.sweeps,
        search.allowed_cut_points and sorted(search.allowed_cut_points),
        version.__version__,
        *map(state_of_source, version.SOURCES),
    ]
    if machine.gpus and may_use_host(search.device) and may_use_gpu(search.device):
        parts.append(machine.gpus[0].memory)  # layers on the host that use it share it out
    return sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:32]
