"""Windows that are also computed mirrored: a GPU makes the copies of each window.

So a window is cut out of its block once, and crosses the link once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from znni.core.shapes import ONE, ZERO, Shape5, Vec3
from znni.engine.block import Block
from znni.engine.executor import Fragments
from znni.engine.windows import mirrored, values_of, window_place
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.locked_arrays import pinned
from znni.network.geometry import cut_for_gpu, given_window
from znni.network.network import Network
from znni.network.window import Copy
from znni.primitives.cpu.common.workers import workers
from znni.primitives.gpu.common.kernels import common_code
from znni.primitives.gpu.common.voxels import launch, strided, strided_along_x


class MirroredWindows:
    """Cuts windows out of blocks on the host, and makes their mirrored copies on the current GPU.

    If a group has fewer copies than are computed at once, zeros stand for the others.

    Args:
        network: the network, with windows over a volume.
        patch: the extents of a block.
        threads: the number of threads that cut windows.
    """

    def __init__(self, network: Network, patch: Vec3, threads: int) -> None:
        self._window = given_window(network)
        self._place = window_place(network, self._window, patch)
        self._cut = pinned(cut_for_gpu(network))
        self._threads = threads
        shape = Shape5.of(network.together, network.in_features, self._place.size)
        self._copies = cupy().zeros(shape, np.float32)
        self._kernel = compiled(source()).get_function("place_window")

    def __call__(self, block: Block, group: Sequence[Copy]) -> Fragments:
        """Return the windows (n, f, z, y, x) of a group, each once. The next call overwrites them.

        Args:
            block: the block.
            group: the copies that are computed at once.
        """
        starts = _starts(group)

        def copy(_worker: int, number: int) -> None:
            self._cut[number] = values_of(block, self._window, starts[number])

        workers(self._threads).for_each(copy, range(len(starts)))
        return Fragments(self._cut[: len(starts)], (ZERO,), ONE)

    def copies(self, windows: Any, group: Sequence[Copy]) -> Any:
        """Return what the network sees of the copies of a group. The next call overwrites them.

        All work is queued on the current stream.

        Args:
            windows: the windows of the group on the GPU, each once.
            group: the copies that are computed at once.
        """
        starts, (_, inside, used) = _starts(group), self._place
        for copy, (start, axes) in zip(self._copies, group, strict=False):
            window = mirrored(windows[starts.index(start)], axes)[:, *used]
            target = copy[:, *inside]
            arrays = *strided(target), *strided_along_x(window)
            launch(self._kernel, Shape5(1, *target.shape), *arrays)
        self._copies[len(group) :].fill(0)
        return self._copies


def _starts(group: Sequence[Copy]) -> list[Vec3]:
    """Return where the windows of a group begin, each once."""
    return list(dict.fromkeys(copy.start for copy in group))


def source() -> str:
    """Return the CUDA source of ``place_window``."""
    return common_code("voxels.cuh") + source_beside(__file__, "mirrored_windows.cu")
