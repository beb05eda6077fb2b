"""The fastest plans for a job."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Unpack

from numpy.typing import DTypeLike

from planner.job_places import AxisPlaces, JobPlaces
from planner.limits import does_not_fit
from planner.overhead import Overhead
from planner.search import Search
from znni.calibration.choice import cost_model, of_measured_devices
from znni.calibration.overhead_figures import (
    ZARR_SECONDS,
    around_here,
    handling_times,
    last_pass_seconds,
    run_overhead,
    statistics_seconds,
)
from znni.calibration.phase_notes import kind_of
from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput
from znni.core.loading import without_collections
from znni.core.logged import telling_if_long
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Accuracy, Border, Costs, OutputType
from znni.core.plan_options import Choices, PlanOptions, check_keywords
from znni.core.processors import FASTEST, GPU, HOST, may_use_gpu
from znni.core.shapes import Region, Vec3, is_extent
from znni.engine.labels import labels_for
from znni.engine.tiles import Job, for_job, make_job
from znni.inference.devices import primitives_for
from znni.inference.gpu_choice import choose_gpus
from znni.inference.plan_cache import fastest_cached_or_found, store_plan
from znni.inference.request import Requirements, input_type, stored_as
from znni.machine.busy import slowdown
from znni.machine.cold_pages import cold_share, warm_bytes
from znni.machine.machine import Machine
from znni.machine.machine_choice import machine_for
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.plans.accuracy import class_of_plan, filter_by_class, note_on
from znni.plans.job_seconds import SecondsAround
from znni.plans.plan import Plan
from znni.plans.plan_text import about_split, explanation
from znni.plans.primitive import Catalogue
from znni.plans.rewrites.deferred_head import with_deferred_head
from znni.plans.stored_values import Stored
from znni.primitives.catalogue import catalogue, families
from znni.primitives.other_library.on_gpu import host_bytes

if TYPE_CHECKING:
    from planner.sensitivity import Views

log = logging.getLogger("znni")

SEARCH = "searching for the fastest plan"  # as it is told if it takes long


class SearchOptions(PlanOptions, total=False):
    """Keyword arguments of ``search``."""

    border: Border
    roi: Region | None
    machine: Machine | str | Path | None
    dtype: OutputType
    input_dtype: DTypeLike | None
    input_itemsize: int | None
    labels: bool
    threshold: float | None


@checks_types
def plan(
    network: Network | str | Path, volume_shape: Sequence[int], **options: Unpack[SearchOptions]
) -> Plan:
    """Find the fastest way to run a network over a volume.

    Args:
        network: a network, or its YAML file.
        volume_shape: extents (z, y, x) of the input, in voxels.
        options: options of ``search``, all optional: ``border``, ``roi``, ``machine``, ``dtype``,
            ``input_dtype``, ``input_itemsize``, ``labels``, ``threshold``, and the limits and
            choices for the plan.

    Raises:
        InvalidInput: an argument cannot be used, as in ``search``.
        DoesNotFit: no plan stays within ``ram`` and ``gpu_memory``.
    """
    check_keywords(plan, SearchOptions, options)
    return as_here(fastest(search(network, volume_shape, **options))[0])


@checks_types
def search(
    network: Network | str | Path,
    volume_shape: Sequence[int],
    *,
    border: Border = "valid",
    roi: Region | None = None,
    machine: Machine | str | Path | None = None,
    dtype: OutputType = "float32",
    input_dtype: DTypeLike | None = None,
    input_itemsize: int | None = None,
    labels: bool = False,
    threshold: float | None = None,
    **options: Unpack[PlanOptions],
) -> Search:
    """Return a search over all plans that run a network over a volume.

    Its method ``fastest`` gives as many of the fastest plans as you ask for.

    Args:
        network: a network, or its YAML file.
        volume_shape: extents (z, y, x) of the input, in voxels.
        border: ``valid`` or ``same``.
        roi: voxels of the volume that need output, such as ``numpy.s_[10:20, :, 5:]``.
        machine: the machine to plan for, its YAML file, or the name of one that comes with znni;
            by default this one.
        dtype: type of the output values.
        input_dtype: type of the stored input values; float32 if neither this nor
            ``input_itemsize`` is given.
        input_itemsize: bytes of one stored input value, if its type is not known. One or two are
            taken for those of an integer.
        labels: whether the label of the largest map is stored, as by ``znni.infer``.
        threshold: whether labels by a threshold are stored.
        options: limits and choices for the plan: ``ram``, ``threads``, ``device``, ``theta``,
            ``gpu_memory``, ``gpus``, ``accuracy``, ``costs`` and ``micro_batches``, as in
            ``znni.core.plan_options.Choices``.

    Raises:
        InvalidInput: network, shape, machine or device cannot be used, or ``measured`` costs are
            missing.
    """
    check_keywords(search, SearchOptions, options)
    network = network if isinstance(network, Network) else load_network(network)
    extents = _extents(volume_shape)
    choices = Choices(**options)
    labelled = labels_for(network, labels, threshold)
    stored = stored_as(network, labelled, dtype, input_type(input_dtype, input_itemsize))
    job = make_job(network, extents, border, None, roi)
    wanted = machine_for(machine, choices.ram, choices.threads, choices.gpu_memory, choices.device)
    required = Requirements(for_job(network, job), job, choices, stored)
    return search_for(required, choose_gpus(wanted, choices))


def _extents(volume: object) -> Vec3:
    """Return the extents of a volume.

    Raises:
        InvalidInput: the value is not a shape; it may be the volume itself.
    """
    shape = getattr(volume, "shape", ())
    if len(shape) > 1:
        raise InvalidInput(f"a plan needs only the shape; give this array's, {shape[-3:]}")
    if isinstance(volume, str | Path) or not isinstance(volume, Iterable):
        raise InvalidInput(f"{str(volume)!r} is no shape of a volume; give z, y and x as integers")
    extents = tuple(volume)
    if len(extents) != 3 or not all(is_extent(extent) for extent in extents):
        raise InvalidInput(
            f"a volume of shape {extents} cannot be planned for; give z, y and x as integers of 1 "
            f"or more"
        )
    return Vec3(*map(int, extents))


def explain(search: Search, plan: Plan) -> str:
    """Explain why each layer has its primitive, and why no layers are split between devices."""
    from planner.other_primitives import other_primitives
    from planner.sensitivity import best_split

    text = explanation(other_primitives(plan, search.catalogue, search.model))
    split = None if plan.is_split else best_split(search)
    return f"{text}\n\n{about_split(plan, split)}" if split else text


def look_around(search: Search, plan: Plan) -> Views:
    """Return alternatives to the fastest plan: other limits, patch sizes and primitive families."""
    from planner.sensitivity import views

    with telling_if_long("looking for other plans"):
        return views(search, plan, families(search.catalogue))


def search_for(required: Requirements, machine: Machine) -> Search:
    """Return a search over all plans for a job on a machine, with primitives of one accuracy class.

    Args:
        required: requirements that the plans must meet.
        machine: the machine to plan for. Its memory is the limit, whatever limits
            ``required.choices`` has.
    """
    network = shared_out(with_deferred_head(required.network), machine.used_gpus)
    network = replace(network, weights=None)
    choices = required.choices
    able = filter_by_class(primitives_of(network, machine), choices.accuracy)
    device, costs = choices.device, choices.costs
    if device == FASTEST and machine.used_gpus > 1:
        device = GPU  # layers on the host would keep several GPUs waiting
    primitives = primitives_for(network, able, machine, device)
    if device == FASTEST and costs == "measured":
        primitives = of_measured_devices(primitives)
    model = cost_model(primitives, costs, absent=machine.absent)
    touched = machine if may_use_gpu(device) else replace(machine, gpus=())
    warm = inf if machine.absent else warm_bytes()
    overhead = overhead_of(required.network, required.job, touched, required.stored, costs, warm)
    if network.models and touched.gpus:
        libraries = overhead.cuda + host_bytes(network.models, primitives.values())
        overhead = replace(overhead, cuda=libraries)
    overhead = replace(overhead, followed=required.followed)
    division, output = choices.micro_batches, required.job.output
    query = Search(
        network, output, machine, primitives, overhead, model, division, device, sweeps=True
    )
    return query if choices.theta is None else query.with_theta(choices.theta)


def overhead_of(
    network: Network, job: Job | None, machine: Machine, stored: Stored, costs: Costs, warm: float
) -> Overhead:
    """Return the overhead of a run.

    Some of it depends on where the job lies. These are the places of its blocks, and its passes
    over the whole volume and the whole output. One reads the volume for its statistics. The other
    writes a file, or coarser resolutions, from all blocks.

    Args:
        network: the network for the job's volume.
        job: the output that is wanted, if it is known.
        machine: the machine, with the GPUs that the run may touch.
        stored: how input and output values are stored.
        costs: the source of predicted times.
        warm: the bytes of the host whose first touch takes no extra time.
    """
    overhead = run_overhead(machine, stored, handling_times(machine, costs), warm, cold_share())
    if job is None:
        return overhead
    once = overhead.once
    before = statistics_seconds(network, job.volume, stored.input_itemsize, machine, overhead)
    after = last_pass_seconds(network, job.output, machine, stored)
    loading = ZARR_SECONDS if stored.loads_zarr else 0.0
    around = once.around + SecondsAround(opening=loading + before, finishing=after)
    return replace(overhead, once=replace(once, around=around), places=places_of(network, job))


def places_of(network: Network, job: Job) -> JobPlaces | None:
    """Return the places of a job's blocks; None for a region within the volume.

    So all regions of one size have the same plan.

    Args:
        network: the network for the job's volume.
        job: which output is wanted.
    """
    if max(job.origin) > 0 or max(job.first) > 0:
        return None
    windows = [network.window.along(axis) if network.window else None for axis in range(3)]
    z, y, x = zip(
        *(job.volume, job.origin, job.output, job.first, job.alignment, windows), strict=True
    )
    return AxisPlaces(*z), AxisPlaces(*y), AxisPlaces(*x)


def primitives_of(network: Network, machine: Machine) -> Catalogue:
    """Return the primitives that a network may need on a machine."""
    return catalogue(machine, models=True) if network.models else catalogue(machine)


def fastest(search: Search, count: int = 1, *, fresh: bool = False) -> list[Plan]:
    """Return the fastest plans of a search, and log how long it takes.

    Args:
        count: the number of plans. If it is one, the plan may be kept from an earlier search.
        fresh: whether to search even if the plan is kept.

    Raises:
        DoesNotFit: no plan fits. The error says how much memory makes half of the best speed, and
            whether the processors alone could compute the network.
    """
    with telling_if_long(SEARCH), without_collections():
        return _fastest_or_why(search, count, fresh=fresh)


def _fastest_or_why(search: Search, count: int, *, fresh: bool) -> list[Plan]:
    """Return the fastest plans of a search, or say what keeps plans from fitting."""
    try:
        plans = _fastest(search, count, fresh=fresh)
    except DoesNotFit as error:
        from planner.sensitivity import memory_for_half

        sensible = memory_for_half(search, error.needed, error.device)
        without = _least_without_gpu(search)
        raise replace(error, sensible=sensible, without_gpu=without) from None
    _warn_of_gpu_without_room(search, plans[0])
    return plans


def _least_without_gpu(search: Search) -> int:
    """Return the host's bytes that suffice if no GPU is used; 0 if no such plan fits either."""
    if search.device != FASTEST or not search.machine.gpus:
        return 0
    alone = search.on(HOST)
    if not alone.cut_points:
        return 0
    alone.overhead = replace(search.overhead, cuda=0)
    least = alone.smallest().memory.total
    return least if least <= search.machine.host.memory else 0


def _warn_of_gpu_without_room(search: Search, plan: Plan) -> None:
    """Warn if the processors compute only because no plan fits on the GPU."""
    if search.device != FASTEST or plan.gpu_memory or not plan.machine.gpus:
        return
    on_gpu = search.on(GPU)  # loads the modules of all primitives
    if not on_gpu.cut_points:
        return
    with suppress(InvalidInput):  # GPUs do not compute all layers
        smallest = on_gpu.smallest()
        if any(taken.total > device.memory for taken, device in smallest.limits.values()):
            log.warning("no GPU is used: %s", does_not_fit(smallest, on_gpu.overhead))


def _fastest(search: Search, count: int, *, fresh: bool) -> list[Plan]:
    """Return the fastest plans of a search."""
    start = perf_counter()
    cached = False
    if count > 1:
        plans = search.fastest(count)
    elif fresh:
        plans = search.fastest()
        store_plan(plans[0], search)
    else:
        plan, cached = fastest_cached_or_found(search)
        plans = [plan]
    seconds, source = perf_counter() - start, " (kept from an earlier search)" if cached else ""
    log.info("planned in %.1f s%s: patch %s, %s", seconds, source, plans[0].patch, plans[0].device)
    return plans


def as_here(plan: Plan, *, searched: bool = False) -> Plan:
    """Return a plan to be shown, with the seconds that runs take on this machine to start and plan.

    Outputs note plans without them. So a run that goes on notes the same plan.

    Args:
        searched: whether the run searches for the plan. Else it takes a plan that is kept or given.
    """
    if plan.machine.absent:
        return plan
    around = around_here(plan.time.around, kind_of(plan), searched=searched)
    return replace(plan, time=replace(plan.time, around=around), slowdown=slowdown())


def accuracy_of(plan: Plan) -> Accuracy:
    """Return the class of a plan's least accurate primitive on this machine."""
    return class_of_plan(plan, primitives_of(plan.network, plan.machine))


def accuracy_note(plan: Plan, allowed: Accuracy) -> str:
    """Return a remark on a plan's accuracy; empty if float32 is allowed and used."""
    return note_on(plan, primitives_of(plan.network, plan.machine), allowed)


def shared_out(network: Network, processes: int) -> Network:
    """Return a network whose blocks are computed by some processes.

    If there are several, each takes any block, and windows keep nothing for the next one.
    """
    window = network.window
    return replace(network, window=window and replace(window, in_order=processes == 1))
