"""Run a network over a volume on many machines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from znni.cluster.calls import Recipe
from znni.cluster.cluster_file import Cluster, per_worker
from znni.cluster.coordinator import Coordinator
from znni.cluster.machines import Machines
from znni.cluster.output_claim import OutputClaim
from znni.cluster.workers import Tally
from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput
from znni.core.logged import READING
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Bits, Recheck, check_names
from znni.core.plan_options import check_keywords
from znni.core.shapes import Box
from znni.core.text import counted, duration
from znni.engine.tile_grid import TileGrid
from znni.inference.agreed_plan import normalized_as_begun
from znni.inference.model_choice import shared_form
from znni.inference.output_attributes import provenance
from znni.inference.parts import Finished, check_sharing, finish
from znni.inference.request import (
    OpenRequest,
    Request,
    RunArguments,
    open_request,
    parameters_of,
    request_for,
)
from znni.inference.resuming import identified, resume_advice
from znni.network.network import Network
from znni.plans.plan import Plan
from znni.volumes.grid_attributes import grid_attributes
from znni.volumes.locate import writer_at
from znni.volumes.output_folder import output_folder
from znni.volumes.stored import is_url
from znni.volumes.writer import SharedOutput

log = logging.getLogger("znni")

# Called with the voxels done, those wanted, and a word on the workers.
ClusterProgress: TypeAlias = Callable[[int, int, str], None]


def no_progress(_done: int, _total: int, _workers: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class ClusterReport:
    """The account of a run on a cluster.

    Attributes:
        voxels: output voxels that the run computed.
        seconds: the wall time, from before the workers start to the complete output.
        tally: what happened to the workers.
        finished: the complete output.
    """

    voxels: int
    seconds: float
    tally: Tally
    finished: Finished

    def __str__(self) -> str:
        """Return this in words."""
        rate = self.voxels / max(self.seconds, 1e-9)
        return (
            f"{counted(self.voxels, 'voxel')} in {duration(self.seconds)} ({rate:,.0f} voxels/s) "
            f"on {self.tally}; {counted(self.finished.blocks, 'block')} complete, "
            f"{self.finished.checked:,} of them compared with their checksums"
        )


@checks_types
def infer_on_cluster(
    source: str | Path,
    network: Network | str | Path,
    out: str | Path,
    *,
    cluster: Cluster | str | Path,
    bits: Bits | None = None,
    progress: ClusterProgress = no_progress,
    recheck: Recheck = "sample",
    **options: Unpack[RunArguments],
) -> ClusterReport:
    """Run a network over a volume on the machines of a cluster.

    The output is that of ``znni.infer``. This process hands out the blocks, and workers compute and
    write them. If the run is stopped, the same call continues it.

    Args:
        source: path or URL of the volume, which all machines must see.
        network: a network, or its YAML file.
        out: path or URL of the OME-Zarr to make, which all machines must see.
        cluster: the machines, their YAML file, or ``local:N`` for N processes of this machine.
        bits: ``same``: all workers compute the same bits, and others are shut out. ``class``:
            each kind of machine has a plan of its own for the blocks, of the same accuracy class.
            By default what the cluster's file says, or else ``same``.
        progress: called after each block.
        recheck: which finished blocks are read again at the end: ``none``, ``sample`` or ``all``.
            Those that several workers may have written are always read again.
        options: as for ``znni.infer``, but weights are those of a file. The patches of a plan are
            the blocks; by default the first worker makes one. Limits of memory and threads are
            those of each worker, or of all workers of a local cluster, if the cluster's file gives
            none.

    Raises:
        InvalidInput: something given cannot be used as it is.
        DoesNotFit: no plan stays within a worker's memory.
        RunFailed: blocks failed too often, or the cluster is gone.
    """
    check_keywords(infer_on_cluster, RunArguments, options)
    request = request_for(source, network, out, **options)
    return compute_on_cluster(request, cluster, bits, progress, recheck)


def compute_on_cluster(
    request: Request,
    cluster: Machines | Cluster | str | Path,
    bits: Bits | None,
    progress: ClusterProgress,
    recheck: Recheck,
) -> ClusterReport:
    """Run a network over a volume on the machines of a cluster, as ``infer_on_cluster``.

    Machines that stay are there already, or start for this run.
    """
    machines = cluster
    if not isinstance(machines, Machines):
        machines = Machines(machines, request.options.limits, request.out)
    bits = bits or machines.cluster.bits or "same"
    check_names(recheck=recheck, bits=bits)
    network, out = request.loaded, request.out
    form = shared_form(network).network  # workers import a model themselves
    asked = open_request(replace(request, network=form))
    parameters = parameters_of(asked)
    check_sharing(asked)
    wanted = identified(asked, parameters)
    identity = dict(wanted.identity)
    if bits == "class":  # such an output may be computed in no other way
        wanted = replace(wanted, identity=identity | {"bits": bits})
    output = writer_at(out, request.source, asked.region.mask).join(wanted, lambda _patch: [])
    begun = perf_counter()
    try:
        asked = normalized_as_begun(
            output.resume_state, asked, lambda done, total: progress(done, total, READING)
        )
        scaled = replace(network, scaling=asked.network.scaling)
        recipe = Recipe(_travelling(replace(request, network=scaled)), identity)
        with OutputClaim(output_folder(str(out)).ledger, Path(out).name):
            with machines.engine(recipe) as engine:
                coordinator = Coordinator(engine, bits)
                if not output.resume_state.plan:
                    output.note_plan(coordinator.make_plan(request.plan))
                agreed = output.resume_state.plan
                chosen = Plan.from_json(agreed)
                attributes = provenance(chosen, parameters, asked) | grid_attributes(wanted.grid)
                if bits == "class":
                    attributes["bits"] = bits
                output.begin(attributes, chosen.patch)
                grid = TileGrid(asked.job, chosen.patch, chosen.network.swept_along)
                finished, probe, before = _finished(output, grid)
                told = _in_voxels(progress, asked)
                coordinator.compute(agreed, grid, finished, probe, output, told)
                coordinator.collect_accounts()
            for run in coordinator.tally.runs:
                output.note({"run": run})
            output.close()
            whole = finish(out, recheck=recheck)
    except DoesNotFit as error:
        short = per_worker(error, machines.sharing, machines.leaving)
        short.add_note(output.abandon(resume_advice(error)))
        raise short from None
    except BaseException as error:
        error.add_note(output.abandon(resume_advice(error)))
        raise
    report = ClusterReport(
        wanted.size.volume - before, perf_counter() - begun, coordinator.tally, whole
    )
    log.info("%s", report)
    return report


def _finished(output: SharedOutput, grid: TileGrid) -> tuple[NDArray[np.bool_], Box | None, int]:
    """Return which blocks of a grid are finished, the first of them, and all their voxels."""
    finished = np.zeros(len(grid), bool)
    probe: Box | None = None
    voxels = 0
    for box in output.finished():
        number = grid.number(box)
        if number is None:
            raise InvalidInput(
                f"the unfinished output has a block {box} of another grid; delete it and its "
                f"ledger, or write elsewhere"
            )
        finished[number] = True
        voxels += box.size.volume
        probe = probe or box
    if probe:
        done = int(finished.sum())
        log.warning(
            "going on where an earlier run stopped, with %s finished", counted(done, "block")
        )
    return finished, probe, voxels


def _in_voxels(progress: ClusterProgress, asked: OpenRequest) -> ClusterProgress:
    """Return progress that is told of blocks and tells of voxels."""
    voxels = asked.job.output.volume

    def told(done: int, total: int, workers: str) -> None:
        progress(voxels * done // total, voxels, workers)

    return told


def _travelling(request: Request) -> Request:
    """Return a request as workers get it. Its paths are absolute, and its plan goes by itself."""
    region, weights = request.options.region, request.weights
    if region.mask is not None:
        if not isinstance(region.mask, str | Path):
            raise InvalidInput("a mask in memory is not seen by workers; give the name of its file")
        region = replace(region, mask=_absolute(region.mask))
    if weights is not None and not isinstance(weights, str | Path):
        raise InvalidInput("weights in memory are not seen by workers; give the name of their file")
    return replace(
        request,
        source=_absolute(request.source),
        out=_absolute(request.out),
        options=replace(request.options, region=region),
        weights=None if weights is None else _absolute(weights),
        plan=None,
    )


def _absolute(place: Any) -> str:
    return str(place) if is_url(str(place)) else str(Path(place).absolute())
