"""Networks of cases on a cluster. All that its workers read lies in the case's folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from znni.cases.npy_file import new_array_file
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, RunFailed
from znni.core.options import Choices
from znni.core.processors import HOST
from znni.core.run_options import Options, StorageOptions
from znni.engine.run_state import Progress
from znni.inference.request import Request
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

    Raises:
        InvalidInput: the cluster's file cannot be used, or an option contradicts it.
    """

    def __init__(self, given: str | Path, limits: Choices, out: Path) -> None:
        from znni.cluster.cluster_file import load_cluster
        from znni.cluster.machines import Machines

        found = load_cluster(given)
        if found.groups and all(group.ram for group in found.groups):
            limits = replace(limits, ram=None)
        if found.groups and all(group.cores for group in found.groups):
            limits = replace(limits, threads=None)
        self.limits = limits
        self._machines = Machines(found, limits, out, stay=True)

    @property
    def cluster(self) -> Cluster:
        """The cluster, with the limits of its workers if they are of this machine."""
        return self._machines.cluster

    @property
    def ram_here(self) -> int:
        """The bytes that all workers may take of this machine's memory."""
        return self._machines.ram_here

    def compute(self, request: Request, folder: Path, progress: Progress) -> ClusterReport:
        """Compute a network over its input.

        Args:
            request: the run, with weights from a file.
            folder: the case's folder.
            progress: called with the voxels done, and all voxels.

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
    given: str | Path | None, options: Options, out: Path
) -> tuple[Options, CaseCluster | None]:
    """Return the options for the steps of this process, and the cluster for cases.

    Args:
        given: the cluster's file, or ``local:N``; None: this machine computes all.
        options: what plans may use.
        out: the labels of a case.

    Raises:
        InvalidInput: the cluster's file cannot be used, or an option contradicts it.
    """
    if given is None:
        return options, None
    return without_devices(options), CaseCluster(given, options.limits, out)


def without_devices(options: Options) -> Options:
    """Return the options for the steps that are not on the cluster: they need no GPU."""
    limits = replace(options.limits, device=HOST, theta=None, gpu_memory=None, gpus=1)
    return replace(options, limits=limits)


def _weights_in(folder: Path, weights: object, name: str) -> Path | None:
    """Return a copy of a network's weights in the folder of a case; None if it has none.

    Raises:
        InvalidInput: they are in memory.
    """
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
