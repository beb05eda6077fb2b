"""Convolution by whole-image FFT in which all threads share each step.

It follows the data-parallel algorithm of ZNNi (section IV-A2), which takes the least memory if a
layer has fewer input maps than output maps. The spectra of all inputs are held. The outputs are
made a few maps at a time, and only those few are ever held transformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.network.weights import Float32
from znni.plans.cost import HandedOut
from znni.plans.primitive import Run
from znni.primitives.cpu.fft_whole_image.base import WholeImageFft
from znni.primitives.cpu.fft_whole_image.blocking import Blocking, Scratch
from znni.primitives.cpu.fft_whole_image.fft_layer import FftLayer
from znni.primitives.cpu.fft_whole_image.pruned_fft import Complex64

# Number of maps transformed or made at a time. Few maps save memory; more maps save barriers.
GROUP = 4


@dataclass(frozen=True)
class FftDataParallel(WholeImageFft):
    """Whole-image FFT convolution, parallel within each step."""

    name: str = "fft_data_parallel"
    group: ClassVar[int] = GROUP
    version = 2

    def working_bytes(self, blocking: Blocking) -> int:
        """Return the bytes of S f (n + n~) + max{S g h, S g' h' + S f' n' + T scratch} elements.

        n~ = N_z N_y (N_x + 2) is a spectrum. h = n_z N_y (N_x + 2) and h' = n'_z N_y (N_x + 2) are
        half-transformed maps. At a time, g <= 4 inputs or g' <= 4 outputs of them are held. T is
        the number of threads. SciPy adds one transform's result per thread.
        """
        both, first_stage, second_stage = self._stage_bytes(blocking)
        return blocking.shape.nbytes + both + max(first_stage, second_stage + blocking.out.nbytes)

    def workspace_bytes(self, blocking: Blocking) -> int:
        """Return the bytes of S f n~ + max{S g h, S g' h' + T scratch} elements.

        The symbols are those of ``working_bytes``.
        """
        both, first_stage, second_stage = self._stage_bytes(blocking)
        return both + max(first_stage, second_stage)

    @staticmethod
    def _stage_bytes(blocking: Blocking) -> tuple[int, int, int]:
        """Return the workspace of both stages, and the additions of inputs' and outputs' stage."""
        shape, out = blocking.shape, blocking.out
        spectra = blocking.spectra_bytes(blocking.all_vectors)
        half_in = shape.n * min(GROUP, shape.f) * blocking.half_bytes
        half_out = out.n * min(GROUP, out.f) * blocking.half_bytes * out.z // shape.z
        return spectra + blocking.transient_bytes, half_in, half_out + blocking.scratch_bytes

    def bytes_moved(self, blocking: Blocking) -> float:
        """Return the bytes moved to and from main memory.

        Each group of output maps reads all inputs' spectra, and each block reads all kernels.
        Half-transformed maps are written and read.
        """
        shape, out = blocking.shape, blocking.out
        spectra = blocking.spectra_bytes(blocking.all_vectors)
        return (
            shape.nbytes
            + 2.0 * blocking.half_bytes * (shape.n * shape.f + out.n * out.f)
            + (1.0 + len(blocking.groups)) * spectra
            + 2.0 * out.nbytes
            + blocking.kernel_bytes_read
        )

    def handed_out(self, blocking: Blocking) -> HandedOut:
        """Return the tasks: for each group of maps, slabs and transforms along z.

        Groups of output maps also have products.
        """
        groups_in, groups_out = -(-blocking.shape.f // GROUP), len(blocking.groups)
        groups = groups_in + groups_out
        products = len(blocking.blocks) * groups_out
        columns = groups * blocking.columns(1)  # a whole group is transformed at once
        return HandedOut(2 * groups, blocking.slabs + columns + products)

    def convolution(self, steps: FftLayer) -> Run:
        """Return a run that transforms all inputs, then makes the outputs group by group."""
        return _Convolution(steps.blocking, steps)


@dataclass(frozen=True)
class _Convolution:
    blocking: Blocking
    steps: FftLayer

    def __call__(self, x: Float32) -> Float32:
        spectra = self.blocking.empty_spectra(self.blocking.all_vectors)
        self._transform_inputs(x, spectra)
        y = new_output(self.blocking.out)
        self._transform_outputs(spectra, y)
        return y

    def _transform_inputs(self, x: Float32, spectra: Float32) -> None:
        blocking, steps, shape = self.blocking, self.steps, self.blocking.shape
        half = self._empty_half(shape)

        for first in range(0, shape.f, GROUP):
            maps = range(min(GROUP, shape.f - first))

            def planes(worker: int, item: tuple[int, int, int], first: int = first) -> None:
                n, j, slab = item
                steps.forward_planes(worker, x[n, first + j], half[n, j], slab)

            def lines(worker: int, block: int, first: int = first, maps: int = len(maps)) -> None:
                vectors = spectra[block : block + blocking.vectors]
                for n in range(shape.n):
                    steps.forward_block(worker, half[n, :maps], block, vectors, first, n)

            slabs = product(range(shape.n), maps, blocking.forward_slabs)
            blocking.workers.for_each(planes, slabs)
            blocking.workers.for_each(lines, blocking.blocks)

    def _transform_outputs(self, spectra: Float32, y: Float32) -> None:
        blocking, steps, out = self.blocking, self.steps, self.blocking.out
        half = self._empty_half(out)
        scratch = [Scratch(blocking) for _ in range(blocking.threads)]

        for group in blocking.groups:
            maps = range(min(GROUP, out.f - group))

            def lines(worker: int, block: int, group: int = group, maps: int = len(maps)) -> None:
                vectors = spectra[block : block + blocking.vectors]
                sums = steps.products(scratch[worker], vectors, block, group)
                for n in range(out.n):
                    steps.inverse_block(worker, sums, n, half[n, :maps], block)

            def planes(worker: int, item: tuple[int, int, int], group: int = group) -> None:
                n, o, slab = item
                steps.inverse_planes(worker, half[n, o], group + o, y[n, group + o], slab)

            blocking.workers.for_each(lines, blocking.blocks)
            slabs = product(range(out.n), maps, blocking.inverse_slabs)
            blocking.workers.for_each(planes, slabs)

    def _empty_half(self, shape: Shape5) -> Complex64:
        """Return memory for a group of half-transformed maps (S, maps, z, plane)."""
        maps = min(GROUP, shape.f)
        return workspace((shape.n, maps, shape.z, self.blocking.pruned.plane), np.complex64)
