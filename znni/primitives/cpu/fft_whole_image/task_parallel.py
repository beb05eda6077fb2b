"""Convolution by whole-image FFT in which each task has its own memory.

It follows the task-parallel algorithm of ZNNi (section IV-A3). Its stages are image transforms,
then kernel transforms and multiply-adds, then output transforms. Here the tasks of the outer stages
are slabs of a map, so that even few maps keep all threads busy. The tasks of the second stage are
blocks of frequencies instead of output maps. A block's spectra fit in cache, and all kernels use
them there. The sums overwrite the inputs from which they were made.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from znni.machine.arena import new_output, workspace
from znni.network.weights import Float32
from znni.plans.cost import HandedOut
from znni.plans.primitive import Run
from znni.primitives.cpu.fft_whole_image.base import WholeImageFft
from znni.primitives.cpu.fft_whole_image.blocking import Blocking, Scratch
from znni.primitives.cpu.fft_whole_image.fft_layer import FftLayer
from znni.primitives.cpu.fft_whole_image.pruned_fft import Complex64


@dataclass(frozen=True)
class FftTaskParallel(WholeImageFft):
    """Whole-image FFT convolution in three stages of independent tasks.

    Each group of output maps makes one pass over a block's spectra, which come from the third-level
    cache or beyond.
    """

    name: str = "fft_task_parallel"
    group: ClassVar[int] = 16
    version = 2

    def working_bytes(self, blocking: Blocking) -> int:
        """Return the bytes of S f n + S max(f, f') h + max{T (S f b + scratch), S f' n'} elements.

        h = n_z N_y (N_x + 2) is a half-transformed map, which is less than the paper's n~. b is one
        block of a map's spectrum, at most a few hundredths of n~. T is the number of threads.
        SciPy adds one transform's result per thread.
        """
        every, second_stage = self._stage_bytes(blocking)
        return blocking.shape.nbytes + every + max(second_stage, blocking.out.nbytes)

    def workspace_bytes(self, blocking: Blocking) -> int:
        """Return the bytes of S max(f, f') h + T (S f b + scratch) elements.

        The symbols are those of ``working_bytes``.
        """
        return sum(self._stage_bytes(blocking))

    @staticmethod
    def _stage_bytes(blocking: Blocking) -> tuple[int, int]:
        """Return the workspace of every stage, and the second stage's addition."""
        spectra = blocking.threads * blocking.spectra_bytes(blocking.vectors)
        half_maps = _most_maps(blocking) * blocking.half_bytes
        return half_maps + blocking.transient_bytes, spectra + blocking.scratch_bytes

    def bytes_moved(self, blocking: Blocking) -> float:
        """Return the bytes moved to and from main memory.

        Half-transformed maps are written and read; each block reads all kernels.
        """
        shape, out = blocking.shape, blocking.out
        half_maps = shape.n * shape.f + _most_maps(blocking)
        return (
            shape.nbytes
            + 2.0 * half_maps * blocking.half_bytes
            + 2 * out.nbytes
            + blocking.kernel_bytes_read
        )

    def handed_out(self, blocking: Blocking) -> HandedOut:
        """Return the tasks: slabs, then each block's transforms along z and groups' products."""
        columns = blocking.columns(blocking.shape.f)
        for group in blocking.groups:
            columns += blocking.columns(min(self.group, blocking.out.f - group))
        products = len(blocking.blocks) * len(blocking.groups)
        return HandedOut(3, blocking.slabs + columns + products)

    def convolution(self, steps: FftLayer) -> Run:
        """Return a run of the three stages."""
        return _Convolution(steps.blocking, steps)


def _most_maps(blocking: Blocking) -> int:
    """Return the number of half-transformed maps held; the outputs' overwrite the inputs'."""
    shape, out = blocking.shape, blocking.out
    return max(shape.n * shape.f, out.n * out.f)


@dataclass(frozen=True)
class _Convolution:
    """A run whose array ``half`` holds the half-transformed inputs, and then the outputs."""

    blocking: Blocking
    steps: FftLayer

    def __call__(self, x: Float32) -> Float32:
        blocking = self.blocking
        half: Complex64 = workspace(
            (_most_maps(blocking), blocking.shape.z, blocking.pruned.plane), np.complex64
        )
        self._transform_inputs(x, half)
        self._multiply(half)
        y = new_output(blocking.out)
        self._transform_outputs(half, y)
        return y

    def _transform_inputs(self, x: Float32, half: Complex64) -> None:
        blocking, shape = self.blocking, self.blocking.shape

        def task(worker: int, item: tuple[int, int, int]) -> None:
            n, j, slab = item
            self.steps.forward_planes(worker, x[n, j], half[n * shape.f + j], slab)

        slabs = product(range(shape.n), range(shape.f), blocking.forward_slabs)
        blocking.workers.for_each(task, slabs)

    def _multiply(self, half: Complex64) -> None:
        blocking, steps, features = self.blocking, self.steps, self.blocking.shape.f
        scratch = [Scratch(blocking) for _ in range(blocking.threads)]
        memory = [blocking.empty_spectra(blocking.vectors) for _ in range(blocking.threads)]

        def task(worker: int, block: int) -> None:
            spectra = memory[worker][: blocking.all_vectors - block]
            for n in range(blocking.shape.n):
                inputs = half[n * features : (n + 1) * features]
                steps.forward_block(worker, inputs, block, spectra, 0, n)
            for group in blocking.groups:
                sums = steps.products(scratch[worker], spectra, block, group)
                for n in range(blocking.shape.n):
                    first = n * blocking.out.f + group
                    outputs = half[first : first + sums.shape[1], : blocking.out.z]
                    steps.inverse_block(worker, sums, n, outputs, block)

        blocking.workers.for_each(task, blocking.blocks)

    def _transform_outputs(self, half: Complex64, y: Float32) -> None:
        blocking, out = self.blocking, self.blocking.out

        def task(worker: int, item: tuple[int, int, int]) -> None:
            n, o, slab = item
            self.steps.inverse_planes(worker, half[n * out.f + o], o, y[n, o], slab)

        slabs = product(range(out.n), range(out.f), blocking.inverse_slabs)
        blocking.workers.for_each(task, slabs)
