"""A network over arrays in memory, made ready once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Unpack

import numpy as np

from znni.core.argument_types import checks_types
from znni.core.array_like import ArrayLike
from znni.core.option_types import Border, Pad, check_names
from znni.core.plan_options import Choices, PlanOptions, check_keywords
from znni.core.volume import Volume
from znni.engine.block_reader import BlockReader
from znni.engine.checks import check_features
from znni.engine.run_state import RunState
from znni.engine.statistics import normalized
from znni.engine.tiles import Remaining, for_job, make_job
from znni.inference.devices import check_installed
from znni.inference.request import Requirements, stored_as
from znni.inference.session import Session
from znni.inference.spacing import check_array_spacing
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Float32, Weights, weights_for
from znni.plans.plan import Plan
from znni.volumes.array import ArrayOutput, ArrayVolume

# Held by a thread of a fork that makes an inferer ready for the fork.
_beginning = Lock()


class Inferer:
    """A network that is prepared to run over patches, or volumes in memory.

    Calling it with an array (z, y, x) or (f, z, y, x) gives the dense output (f', z', y', x')
    as float32. Plans and prepared primitives are kept for the next array of the same size, for as
    many sizes as fit into ``ram`` and ``gpu_memory`` together.

    Keyword arguments say what a plan may use: ``ram``, ``threads``, ``device``, ``theta``,
    ``gpu_memory``, ``gpus``, ``accuracy``, ``costs`` and ``micro_batches``, as in
    ``znni.core.plan_options.Choices``. ``ram`` limits the memory of the process, with the output
    but without the given array.

    The network file may have a ``spacing``, the extents of the voxels that it was trained on. It is
    compared with ``voxel_size``, the extents of the arrays' voxels, as ``1.5,1,1mm`` (z, y, x).
    ``any_spacing`` runs over voxels of any size.

    Inferers can run side by side in threads of one process. ``ram`` limits each of them alone, so
    give each its own ``ram``, such that all of them fit. Calls of one inferer take turns, because
    its memory is for one array at a time. A copy, also in another process, prepares itself again.
    So does an inferer in a fork of its process.

    Example:
        >>> inferer = znni.Inferer("networks/boundaries.yaml")
        >>> probability = inferer(volume)

    Raises:
        InvalidInput: network, weights, plan or array cannot be used as given, or voxels have
            another size than the network was trained on. Or a GPU is requested, and its driver or
            library is not installed.
        DoesNotFit: no plan stays within ``ram`` and ``gpu_memory``.
        RunFailed: the GPU failed.
    """

    @checks_types
    def __init__(
        self,
        network: Network | str | Path,
        weights: Weights | str | Path | None = None,
        plan: Plan | None = None,
        *,
        border: Border = "valid",
        pad: Pad | None = None,
        voxel_size: str | None = None,
        any_spacing: bool = False,
        **options: Unpack[PlanOptions],
    ) -> None:
        check_keywords(Inferer, PlanOptions, options)
        check_names(border=border, pad=pad or "reflect")
        self.network = network if isinstance(network, Network) else load_network(network)
        if self.network.models:
            from znni.inference.model_choice import shared_form

            self.network = shared_form(self.network).network
        if not any_spacing:
            check_array_spacing(self.network, voxel_size)
        self.weights = weights_for(self.network, weights, None)
        self.plan = plan
        self._border: Border = border
        self._pad = pad
        self._choices = Choices(**options)
        check_installed(self._choices.device)
        self._begin()

    def _begin(self) -> None:
        self._session = Session(self._choices)
        self._turn = Lock()
        self._process = os.getpid()  # the last one, which tells threads of a fork of the others

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_session", "_turn", "_process")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __call__(self, array: ArrayLike) -> Float32:
        """Return the dense output of an array."""
        if self._process != os.getpid():  # a fork has neither threads nor workers of its own
            with _beginning:  # its threads may call at the same time
                if self._process != os.getpid():
                    self._begin()
        with self._turn:
            return self._infer(array)

    def _infer(self, array: ArrayLike) -> Float32:
        volume = ArrayVolume(array)
        check_features(volume, self.network, one_map="array[0]")
        required = self._required(volume)
        job = required.job
        plan = self._session.plan_for(self.plan, required)
        runner = self._session.runner(plan, self.weights)
        dense = np.empty((self.network.out_features, *job.output), np.float32)
        output = ArrayOutput(dense, self.network.out_features, job.output)

        reader = BlockReader(volume, job, required.network, self.weights)
        state = RunState(reader, output, "float32", Remaining(job))
        runner.run(state, lambda failed, short: self._session.smaller(failed, short, required))
        return dense

    def _required(self, volume: Volume) -> Requirements:
        """Return what a plan for a volume must satisfy."""
        network = normalized(self.network, volume)
        job = make_job(network, volume.size, self._border, self._pad, None)
        output_array = 4 * network.out_features * job.output.volume
        stored = replace(
            stored_as(network, None, "float32", volume.dtype), output_array=output_array
        )
        return Requirements(for_job(network, job), job, self._choices, stored)
