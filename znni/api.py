"""The library: run a network over an array or a volume."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from znni import __version__
from znni.arrays import peak_memory
from znni.calibration.record import StepTimes, refine
from znni.engine.endurance import EnduringRunner
from znni.engine.pipeline import Progress, no_progress
from znni.engine.tiles import Job, Region, make_job
from znni.errors import InvalidInput, ZnniError
from znni.job_seconds import JobSeconds
from znni.machine import detect_for
from znni.network import Network
from znni.network_file import load_network
from znni.options import (
    Accuracy,
    Border,
    Compression,
    Costs,
    DeviceChoice,
    Division,
    OutputType,
    Pad,
    check_choices,
)
from znni.plan_of_run import given_or_found
from znni.planning import accuracy_note, accuracy_of, plan, prepare, search
from znni.plans import Plan
from znni.report import Report
from znni.shapes import Vec3
from znni.smaller_plan import smaller_plan
from znni.units import counted
from znni.volume import Grid, NewOutput, Volume
from znni.volumes.array import ArrayLike, ArrayOutput, ArrayVolume
from znni.volumes.locate import open_output, open_volume
from znni.weights import Float32, Weights, load_weights, random_weights, weights_for

__all__ = [
    "Inferer",
    "Report",
    "ZnniError",
    "infer",
    "load_network",
    "load_weights",
    "plan",
    "random_weights",
    "search",
]


log = logging.getLogger("znni")


def infer(
    source: str | Path | ArrayLike,
    network: Network | str | Path,
    out: str | Path | Any,
    *,
    weights: Weights | str | Path | None = None,
    random_seed: int | None = None,
    dataset: str | None = None,
    border: Border = "valid",
    pad: Pad = "reflect",
    roi: Region | None = None,
    ram: int | str | None = None,
    threads: int | None = None,
    dtype: OutputType = "float32",
    accuracy: Accuracy = "float32",
    costs: Costs = "auto",
    micro_batches: Division = "power-of-two",
    device: DeviceChoice = "auto",
    gpu_memory: int | str | None = None,
    plan: Plan | None = None,
    overwrite: bool = False,
    compression: Compression | None = None,
    sharded: bool = False,
    command: str = "",
    progress: Progress = no_progress,
) -> Report:
    """Run a network over a volume, block by block.

    Args:
        source: a file (HDF5, OME-Zarr or plain Zarr, TIFF, NIfTI, NumPy), ``file.h5:/dataset``,
            the URL of a Zarr, or anything with shape, dtype and slicing; axes (z, y, x) or
            (f, z, y, x), integers or floats.
        network: a network, or its YAML file.
        out: an HDF5 file or an OME-Zarr to make, by its ending, or an array (f', z, y, x) to
            write into.
        weights: parameters, or their file; by default the file that the network names.
        random_seed: use random weights instead.
        dataset: of a file with several.
        border: ``valid`` or ``same``.
        pad: what is seen beyond the edges with ``same``.
        roi: voxels of the volume for which output is wanted, as ``numpy.s_[10:20, :, 5:]``.
        ram: bytes that the process may take beside arrays that it is given, or such as ``8GiB``;
            by default what is available, less a margin.
        threads: worker threads; by default all cores.
        dtype: of the output; ``uint8`` stores 0..1 as 0..255.
        accuracy: the class that primitives may have; ``bfloat16`` allows relative errors of up
            to 1e-2 a layer, where that is faster.
        costs: what times are predicted from: ``measured`` by znni calibrate on this machine, the
            ``built-in`` model, or, with ``auto``, the measured ones if there are any. Unless it is
            ``built-in``, the times of this run join those that were measured.
        micro_batches: the sizes of the pieces that a layer's batch may be computed in, where memory
            is short: none but the whole, powers of two, or all.
        device: where the layers run: the ``cpu``, the ``gpu``, or, with ``auto``, the first GPU if
            there is one that can run them all, and else the CPU.
        gpu_memory: as ``ram``, of the GPU, beside what CUDA takes for itself.
        plan: use this one instead of searching.
        overwrite: replace an existing output file.
        compression: of the chunks of a Zarr: ``zstd`` (the default), ``gzip`` or ``none``.
        sharded: store many chunks of a Zarr to a file.
        command: the command line, to be noted in the output.
        progress: called after each block with the output voxels written and those wanted.

    Raises:
        InvalidInput: something given cannot be used as it is.
        DoesNotFit: no plan stays within ``ram`` and ``gpu_memory``.
        RunFailed: the volume could not be read, or the output written, to its end, or the GPU
            failed.

    Any error after the output is opened carries a note of what is left of it.
    """
    network = network if isinstance(network, Network) else load_network(network)
    weights = weights_for(network, weights, random_seed)
    volume = open_volume(source, dataset)
    check_features(volume, network)
    check_choices(border, pad, dtype, accuracy, costs, micro_batches, device)
    job = make_job(network, volume.size, border, pad, roi)
    grid = volume.grid.starting_at(job.center)
    wanted = NewOutput(
        network.out_features, job.output, dtype, grid, overwrite, compression, sharded
    )
    output = open_output(out, source, wanted)
    if dtype == "uint8" and network.convolutions[-1].activation not in ("sigmoid", "softmax"):
        log.warning("uint8 output holds 0 to 1; what the network gives beyond that is clipped")
    try:
        plan = given_or_found(
            plan,
            network,
            job,
            ram,
            threads,
            dtype,
            accuracy,
            costs,
            micro_batches,
            volume.itemsize,
            device,
            gpu_memory,
        )
        note = accuracy_note(plan, accuracy)
        attributes = _provenance(plan, weights, job, source, command, dtype) | _placed(grid)
        output.describe(attributes, plan.patch)
        times = StepTimes()

        def smaller(failed: Plan) -> Plan:
            return smaller_plan(failed, job, dtype, accuracy, costs, micro_batches, volume.itemsize)

        runner = EnduringRunner(plan, lambda plan: prepare(plan, weights, times, dtype))
        with peak_memory() as peak:
            spent = runner.run(volume, job, output, dtype, progress, smaller)
        measured = _measured(runner.plans, spent, peak.highest)
        output.finish(measured)
    except BaseException as error:
        error.add_note(output.abandon())
        raise
    if costs != "built-in":
        refine(times.warm(), plan.machine.host.threads)
    attributes |= measured
    fallbacks = tuple(runner.plans[1:])
    report = Report(plan, fallbacks, job.output.volume, spent, peak.highest, attributes, note)
    log.info("%s", report)
    return report


class Inferer:
    """A network made ready to run over patches, or volumes in memory.

    Calling it with an array (z, y, x) or (f, z, y, x) gives the dense output (f', z', y', x')
    as float32. The primitives prepared for one size of array are kept for the next of that size.

    ``ram`` bounds what the process may take with its output, beside the array that it is given.

    Example:
        >>> inferer = znni.Inferer("networks/boundaries.yaml")
        >>> probability = inferer(volume)

    Raises:
        InvalidInput: network, weights, plan or array cannot be used as given.
        DoesNotFit: no plan stays within ``ram``.
    """

    def __init__(
        self,
        network: Network | str | Path,
        weights: Weights | str | Path | None = None,
        plan: Plan | None = None,
        *,
        border: Border = "valid",
        pad: Pad = "reflect",
        ram: int | str | None = None,
        threads: int | None = None,
        accuracy: Accuracy = "float32",
        costs: Costs = "auto",
        micro_batches: Division = "power-of-two",
        device: DeviceChoice = "auto",
        gpu_memory: int | str | None = None,
    ) -> None:
        check_choices(
            border,
            pad,
            accuracy=accuracy,
            costs=costs,
            micro_batches=micro_batches,
            device=device,
        )
        self.network = network if isinstance(network, Network) else load_network(network)
        self.weights = weights_for(self.network, weights, None)
        self.plan = plan
        self._border: Border = border
        self._pad: Pad = pad
        self._ram = ram
        self._threads = threads
        self._accuracy: Accuracy = accuracy
        self._costs: Costs = costs
        self._micro_batches: Division = micro_batches
        self._device: DeviceChoice = device
        self._gpu_memory = gpu_memory
        self._allowed = 0
        self._gpu_allowed: int | str | None = None
        self._runner: EnduringRunner | None = None
        self._checked_for: tuple[Vec3, int] | None = None

    def __call__(self, array: ArrayLike) -> Float32:
        """The dense output of an array."""
        volume = ArrayVolume(array)
        check_features(volume, self.network)
        job = make_job(self.network, volume.size, self._border, self._pad, None)
        runner = self._runner_for(job, volume)
        dense = np.empty((self.network.out_features, *job.output), np.float32)
        output = ArrayOutput(dense, self.network.out_features, job.output)

        def smaller(failed: Plan) -> Plan:
            return smaller_plan(
                failed,
                job,
                "float32",
                self._accuracy,
                self._costs,
                self._micro_batches,
                volume.itemsize,
                output_array=dense.nbytes,
            )

        runner.run(volume, job, output, "float32", no_progress, smaller)
        return dense

    def _runner_for(self, job: Job, volume: Volume) -> EnduringRunner:
        """The runner of the plan given, or of one for this job, checked to fit into memory."""
        asked = job.output, volume.itemsize
        if self._runner is not None and self._checked_for == asked:
            return self._runner
        if self.plan is None:
            self._runner = None  # what it keeps is freed before the next one is planned
        if self._runner is None:  # from here on it takes its share of what is available
            here = detect_for(self._device, self._ram, self._threads, self._gpu_memory)
            self._allowed = here.host.memory
            self._gpu_allowed = here.gpus[0].memory if here.gpus else self._gpu_memory
        chosen = given_or_found(
            self.plan,
            self.network,
            job,
            self._allowed,
            self._threads,
            "float32",
            self._accuracy,
            self._costs,
            self._micro_batches,
            volume.itemsize,
            self._device,
            self._gpu_allowed,
            output_array=4 * self.network.out_features * job.output.volume,
        )
        if self._runner is None:
            weights = self.weights
            self._runner = EnduringRunner(chosen, lambda plan: prepare(plan, weights))
        self._checked_for = asked
        return self._runner


def check_features(volume: Volume, network: Network) -> None:
    """Refuse a volume that has other maps than the network takes.

    Raises:
        InvalidInput: it has.
    """
    if volume.features != network.in_features:
        last = " (the last axis looks like the maps: move it to the front)"
        raise InvalidInput(
            f"the volume has {counted(volume.features, 'map')} and network {network.name} takes "
            f"{network.in_features}; axes are (z, y, x), or (f, z, y, x) for several maps"
            + last
            * (volume.features > 1 and volume.size.x == network.in_features)
        )


def _provenance(
    plan: Plan,
    weights: Weights,
    job: Job,
    source: object,
    command: str,
    dtype: OutputType,
) -> dict[str, Any]:
    """How an output came to be, for its attributes."""
    return {
        "znni_version": __version__,
        "command": command,
        "source": str(source) if isinstance(source, str | Path) else type(source).__name__,
        "network": plan.network.name,
        "accuracy": accuracy_of(plan),
        "weights": weights.source,
        "weights_sha256": weights.sha256,
        "voxel_offset": tuple(job.center),
        "scale": 1 / 255 if dtype == "uint8" else 1.0,
        "predicted_seconds": plan.seconds,
        "predicted_error": plan.error,
        "predicted_memory_bytes": plan.memory.total,
        "predicted_gpu_memory_bytes": plan.gpu_memory.total if plan.gpu_memory else 0,
        **plan.time.of_job(plan.patches).named("predicted_"),
        **_measured([plan], JobSeconds(), 0),  # known at the end
    }


def _measured(plans: Sequence[Plan], spent: JobSeconds, peak: int) -> dict[str, Any]:
    """What attributes of an output tell of the run, from the plans that it went through."""
    return {
        "plan": plans[-1].to_json(),
        "fallbacks": len(plans) - 1,
        "seconds": spent.total,
        **spent.named(),
        "peak_memory_bytes": peak,
    }


def _placed(grid: Grid) -> dict[str, Any]:
    """Where an output's voxels lie, for its attributes, if anything is known of that."""
    known = {"voxel_size": grid.scale, "voxel_origin": grid.translation}
    return known if grid.scale != (1.0, 1.0, 1.0) or any(grid.units) else {}
