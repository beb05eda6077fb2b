"""Networks of cases on a cluster. All that its workers read lies in the case's folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from znni.calibration.overhead_figures import PROCESS_BYTES
from znni.cases.networks import NetworkSet, bytes_kept
from znni.cases.npy_file import new_array_file
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, RunFailed
from znni.core.plan_options import Choices
from znni.core.processors import HOST
from znni.core.run_options import Options, StorageOptions
from znni.core.shapes import FLOAT_BYTES
from znni.engine.run_state import Progress
from znni.inference.exporting import LABELS_ROOM
from znni.inference.plan_choice import machine_here
from znni.inference.request import Request
from znni.network.network import Network
from znni.network.weights import Weights

if TYPE_CHECKING:
    from znni.cluster.cluster_file import Cluster
    from znni.cluster.run import ClusterReport

WEIGHTS = "weights"
INPUT = "all-maps.npy"  # the input of a later stage of a cascade


class CaseCluster:
    """A cluster that computes the networks of cases within a ``with`` block.

    Its workers start for the first network, and stay until the end of the block. This process does
    all other steps, within the same limits of memory and threads.

    Args:
        given: the cluster's file, or ``local:N``.
        limits: what plans may use. If the file says what all its workers have, memory and threads
            are those of this process alone.
        out: the labels of a case.
        beside: the bytes of memory that this process takes while the workers compute.
    """

    def __init__(self, given: str | Path, limits: Choices, out: Path, beside: int = 0) -> None:
        from znni.cluster.cluster_file import load_cluster
        from znni.cluster.machines import Machines

        found, ram = load_cluster(given), limits.ram
        if found.groups and all(group.ram for group in found.groups):
            limits = replace(limits, ram=None)
        if found.groups and all(group.cores for group in found.groups):
            limits = replace(limits, threads=None)
        self.limits = limits
        self._machines = Machines(found, limits, out, stay=True, leaving=beside)
        self._is_alone = ram is not None and limits.ram is None  # the limit is this process's alone

    @property
    def cluster(self) -> Cluster:
        """The cluster, with the limits of its workers if they are of this machine."""
        return self._machines.cluster

    @property
    def ram_here(self) -> int:
        """The bytes of this machine's memory that all workers may take beside those when idle."""
        return self._machines.ram_here

    @property
    def idle_here(self) -> int:
        """The bytes of this process's limit of memory that all workers take while they wait."""
        return 0 if self._is_alone else self._machines.idle_here

    def compute(self, request: Request, folder: Path, progress: Progress) -> ClusterReport:
        """Compute a network over its input.

        Raises:
            InvalidInput: something given cannot be used, or workers do not see the folder.
            DoesNotFit: no plan stays within a worker's memory.
            RunFailed: blocks failed too often, or the cluster is gone.
        """
        from znni.cluster.run import compute_on_cluster

        out, source = Path(request.out), request.source
        seen = replace(
            request,
            source=source if isinstance(source, str | Path) else _as_file(source, folder),
            weights=_weights_in(folder, request.weights, out.stem),
            options=replace(
                request.options, limits=self.limits, storage=StorageOptions(pyramid=False)
            ),
        )
        try:
            return compute_on_cluster(
                seen, self._machines, None, lambda done, total, _: progress(done, total), "sample"
            )
        except (InvalidInput, RunFailed) as error:
            if str(folder.absolute()) in str(error):
                error.add_note(
                    "the workers of a cluster read and write the folder of a case, beside its "
                    "labels; write the labels where all machines see them"
                )
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self._machines.close()


def cluster_for(
    given: str | Path | None,
    options: Options,
    out: Path,
    networks: NetworkSet,
    earlier: Sequence[Network] = (),
    writing: int = 0,
) -> tuple[Options, CaseCluster | None]:
    """Return the options for the steps of this process, and the cluster for cases.

    If workers share the limit of memory, these steps leave them what they take while they wait.
    Without a limit, workers of this machine share what is there before they start.

    Args:
        given: the cluster's file, or ``local:N``; None: this machine computes all.
        options: what plans may use.
        out: the labels of a case.
        earlier: the networks of the earlier stages of a cascade.
        writing: the most cases whose labels are written while the workers compute.

    Raises:
        InvalidInput: the cluster's file cannot be used, or an option contradicts it.
    """
    if given is None:
        return options, None
    every = *networks.networks, *earlier
    # The weights of the network that runs are read once more.
    copied = max(FLOAT_BYTES * each.held_parameters for each in every)
    beside = PROCESS_BYTES + sum(map(bytes_kept, every)) + copied + writing * LABELS_ROOM
    machines, here = CaseCluster(given, options.limits, out, beside), without_devices(options)
    if not machines.idle_here:
        return here, machines
    left = machine_here(here.limits).host.memory - machines.idle_here
    return replace(here, limits=replace(here.limits, ram=max(1, left))), machines


def without_devices(options: Options) -> Options:
    """Return the options for the steps that are not on the cluster: they need no GPU."""
    limits = replace(options.limits, device=HOST, theta=None, gpu_memory=None, gpus=1)
    return replace(options, limits=limits)


def _weights_in(folder: Path, weights: object, name: str) -> Path | None:
    """Return a copy of a network's weights in the folder of a case; None if it has none."""
    assert isinstance(weights, Weights)
    if not weights.layers:
        return None
    file = Path(weights.source)
    if not file.is_file():
        raise InvalidInput(
            f"the weights ({weights.source}) are in memory, where workers of a cluster do not see "
            f"them; give their file"
        )
    copy = folder / f"{WEIGHTS}-{name}{file.suffix}"
    if not copy.exists():
        partial = copy.with_name(f"{copy.name}.partial")
        shutil.copyfile(file, partial)
        partial.rename(copy)
    return copy


def _as_file(array: ArrayLike, folder: Path) -> Path:
    """Return the file of an input (f, z, y, x), which is written unless it is there."""
    path = folder / INPUT
    if not path.exists():
        maps, planes = array.shape[:2]
        with new_array_file(path, "<f4", tuple(array.shape)) as file:
            for number in range(maps):
                for z in range(planes):
                    one = slice(number, number + 1), slice(z, z + 1), slice(None), slice(None)
                    file.write(np.ascontiguousarray(array[one], "<f4").data)
    return path
