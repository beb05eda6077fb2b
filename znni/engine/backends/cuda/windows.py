"""The windows of a network on a GPU, which computes them and blends their outputs.

Only the mean of a block's windows leaves the GPU, or labels that are made from it. While the host
stores them, the GPU computes the windows of the next block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ZERO, Box
from znni.engine.after_blending import Blended, Onto, onto
from znni.engine.backends.cuda.mirrored_windows import MirroredWindows
from znni.engine.backends.cuda.part_runner import DevicePartRunner, Launched
from znni.engine.backends.cuda.window_sums import DeviceWindowSums, WindowMemory
from znni.engine.backends.registry import PartToRun
from znni.engine.block import Block, ComputeStage
from znni.engine.executor import Fragments
from znni.engine.labels import Labels
from znni.engine.stages.label import piece_extents
from znni.engine.stopwatch import Stopwatch
from znni.engine.windows import BlendedWindows, WindowInputs
from znni.machine.cuda import cupy, device_errors
from znni.machine.locked_arrays import pinned
from znni.network.geometry import cut_for_gpu, given_window
from znni.network.weights import ConvWeights, Float32
from znni.network.window import Copy
from znni.resampling.gpu import DeviceResampling


class _Queued(NamedTuple):
    """A block whose windows are queued on the GPU.

    Attributes:
        launched: the work.
        mean: the mean (f, z, y, x) of all windows.
        wanted: which voxels need output; None: all.
        onto: where the mean is resampled to; None: the output has its voxels.
    """

    launched: Launched
    mean: Any
    wanted: NDArray[np.bool_] | None
    onto: Onto | None


class BlendedOnGpu(NamedTuple):
    """The mean of all windows over a block, on a GPU that has computed it.

    Attributes:
        bring: function that returns the mean (f, z, y, x) on the host, or the labels
            (1 or f', z, y, x) by a rule.
        head: the weights of the last layer, if it is still to be applied to the mean.
        wanted: the voxels (z, y, x) that need output; None: all.
        threads: the number of workers.
        onto: where the mean is resampled to; None: the output has its voxels.
    """

    bring: Callable[[Labels | None], NDArray[Any]]
    head: ConvWeights | None
    wanted: NDArray[np.bool_] | None
    threads: int
    onto: Onto | None

    def maps(self) -> Float32:
        """Return the output's maps (f', z, y, x)."""
        mean = Blended(self.bring(None), self.head, self.wanted, self.threads, self.onto)
        return mean.maps()

    def labels(self, labels: Labels) -> NDArray[Any]:
        """Return the labels (1 or f', z, y, x) of the output."""
        return self.bring(labels)


class DeviceWindows(DevicePartRunner):
    """The windows of a plan on the first GPU, with everything prepared that can be.

    Args:
        to_run: the part to run, which is all of the plan.

    Raises:
        RunFailed: the GPU does not have enough memory, or it fails in another way.
    """

    def __init__(self, to_run: PartToRun) -> None:
        plan, network = to_run.plan, to_run.plan.network
        window = given_window(network)
        mirrors = window.mirrored_by_gpu
        copied = cut_for_gpu(network) if mirrors else None
        super().__init__(to_run._replace(dtype="float32"), copied)
        self._blended = BlendedWindows(network, plan.patch)
        self._resampling: DeviceResampling | None = None
        self._threads = plan.machine.host.threads
        with device_errors(self._name), self._compute:
            self._memory = WindowMemory(window, network.blended_features, plan.patch)
            self._mirrored = (
                MirroredWindows(network, plan.patch, self._threads) if mirrors else None
            )
            self._inputs = self._mirrored or WindowInputs(
                network, plan.patch, pinned, self._threads
            )
        self._compute.synchronize()

    def stages(self, stopwatch: Stopwatch, _labels: Labels | None = None) -> list[ComputeStage]:
        """Return two stages, for blocks of several windows: queueing, and waiting."""
        self._blended.begin_volume()

        def finish(block: Block) -> BlendedOnGpu:
            queued: _Queued = block.values
            with device_errors(self._name):
                transfer, computing = self._wait_for(queued.launched)
            stopwatch.add("transfer", transfer)
            stopwatch.add("gpu_layers", computing)
            return BlendedOnGpu(
                lambda labels: self._copied(queued, labels),
                self._head,
                queued.wanted,
                self._threads,
                queued.onto,
            )

        return [self._launch_windows, finish]

    def _launch_windows(self, block: Block) -> _Queued:
        """Queue all windows of a block, and wait until the last one's input is copied.

        The GPU may still compute the last block. The block before that must be finished.

        Raises:
            RunFailed: the GPU fails.
        """
        launched = Launched(next(self._buffers), [], [])
        with device_errors(self._name):
            with self._compute:
                mean = self._blended(
                    block, partial(self._windows, launched), partial(self._begin, launched)
                )
            self._compute.record(launched.buffer.computed)
        window = given_window(self._network)
        return _Queued(launched, mean, block.with_output(window), onto(window, block))

    def _copied(self, queued: _Queued, labels: Labels | None) -> NDArray[Any]:
        """Return a copy of the mean of a block on the host, or of the labels of its output."""
        with device_errors(self._name):
            if labels is None or queued.onto is None:
                return self._downloaded(queued.mean, labels)
            with self._download.stream:
                return self._download.of(self._resampled_labels(queued.mean, queued.onto, labels))

    def _resampled_labels(self, mean: Any, onto: Onto, labels: Labels) -> Any:
        """Return the labels of resampled values, on the current stream, piece by piece."""
        if self._resampling is None:
            self._resampling = DeviceResampling(onto.resampling)
        size = onto.written.size
        features = labels.features(self._network.out_features)
        found = cupy().empty((features, *size), labels.dtype)
        for piece in Box(ZERO, size).cut(piece_extents(size, len(mean))):
            wanted = piece.shifted(onto.written.start)
            values = self._resampling.resample(mean, onto.start, wanted)
            found[:, *piece.slices] = self._labelled(values, labels)
        return found

    def _windows(self, launched: Launched, block: Block, group: Sequence[Copy]) -> Any:
        """Queue the layers of a group of windows, and return their outputs (n, f', z, y, x)."""
        inputs, outputs = launched.inputs, list[Fragments]()
        self._runner.spans = launched.steps
        given = self._inputs(block, group)
        with self._upload.of(given) as values:
            seen = self._mirrored.copies(values[:], group) if self._mirrored else values
            self._executor(given._replace(values=seen), outputs.append)
        inputs.append(values)
        if len(inputs) > 2:  # this input has the buffer of one whose windows are done
            inputs[-3].settle()
        return outputs[0].values

    def _begin(self, launched: Launched, box: Box) -> DeviceWindowSums:
        """Return sums over a box, in which no window is yet."""
        return DeviceWindowSums(self._memory, box, launched.buffer.dense)
