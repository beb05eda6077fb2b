"""Convolution by whole-image FFT, each task on memory of its own.

After the task-parallel algorithm of ZNNi (section IV-A3): a stage of image transforms, one of
kernel transforms and multiply-adds, one of output transforms. Here the second stage's tasks are
not output maps but blocks of frequencies: a block's spectra fit in cache, all kernels pass over
them there, and the sums take the place of the inputs that they were made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from znni.arena import new_output, workspace
from znni.cost import Cost, Memory
from znni.machine import Device
from znni.network import Conv, Operation
from znni.primitive import Run, convolved
from znni.primitives.cpu.common.activation import softmax_over_maps
from znni.primitives.cpu.whole_image.blocking import Blocking, Scratch
from znni.primitives.cpu.whole_image.fft_layer import FftLayer
from znni.primitives.cpu.whole_image.pruned_fft import Complex64
from znni.shapes import Shape5
from znni.weights import ConvWeights, Float32, conv_weights

# Output maps per passing of a block's spectra, which come from the third-level cache or beyond.
GROUP = 16


@dataclass(frozen=True)
class FftTaskParallel:
    """Whole-image FFT convolution in three stages of independent tasks."""

    device: Device
    name: str = "fft_task_parallel"
    accuracy: float = 2e-5

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Any convolution."""
        return convolved(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Memory S f n + S max(f, f') h + max{T (S f b + scratch), S f' n'} elements.

        A half-transformed map takes h = n_z N_y (N_x + 2), which is less than the paper's n~; one
        block of a map's spectrum b, at most a few hundredths of n~; T is the number of threads.
        With SciPy, one transform's result per thread more.
        """
        blocking = self._blocking(layer, shape)
        out = blocking.out
        half_in = shape.n * shape.f * blocking.half_bytes
        half = max(half_in, out.n * out.f * blocking.half_bytes)
        spectra = blocking.threads * blocking.spectra_bytes(blocking.vectors)
        second_stage = spectra + blocking.scratch_bytes
        kernels_read = len(blocking.blocks) * 4 * out.f * shape.f * blocking.layer.kernel.volume
        return Cost(
            flops=blocking.flops,
            bytes_moved=shape.nbytes + 2.0 * (half_in + half) + 2 * out.nbytes + kernels_read,
            memory=Memory(
                resident=blocking.resident_bytes,
                working=(
                    shape.nbytes + half + blocking.transient_bytes + max(second_stage, out.nbytes)
                ),
            ),
            efficiency=blocking.efficiency,
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Plan the transforms, and compile."""
        blocking = self._blocking(layer, shape)
        return _Run(blocking, FftLayer(blocking, conv_weights(blocking.layer, weights)))

    def _blocking(self, layer: Operation, shape: Shape5) -> Blocking:
        if not isinstance(layer, Conv) or self.out_shape(layer, shape) is None:
            raise ValueError(f"{self.name} does not apply to {layer} on {shape}")
        return Blocking(layer, shape, self.device.threads, GROUP)


@dataclass(frozen=True)
class _Run:
    """The three stages. ``half`` holds the half-transformed inputs, and then the outputs."""

    blocking: Blocking
    steps: FftLayer

    def __call__(self, x: Float32) -> Float32:
        shape, out = self.blocking.shape, self.blocking.out
        maps = max(shape.n * shape.f, out.n * out.f)
        half: Complex64 = workspace((maps, shape.z, self.blocking.pruned.plane), np.complex64)
        self._transform_inputs(x, half)
        self._multiply(half)
        y = new_output(out)
        self._transform_outputs(half, y)
        if self.blocking.layer.activation == "softmax":
            softmax_over_maps(y, self.blocking.workers)
        return y

    def _transform_inputs(self, x: Float32, half: Complex64) -> None:
        shape = self.blocking.shape

        def task(worker: int, item: tuple[int, int]) -> None:
            n, j = item
            for slab in self.blocking.forward_slabs:
                self.steps.forward_planes(worker, x[n, j], half[n * shape.f + j], slab)

        self.blocking.workers.for_each(task, product(range(shape.n), range(shape.f)))

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
        out = self.blocking.out

        def task(worker: int, item: tuple[int, int]) -> None:
            n, o = item
            for slab in self.blocking.inverse_slabs:
                self.steps.inverse_planes(worker, half[n * out.f + o], o, y[n, o], slab)

        self.blocking.workers.for_each(task, product(range(out.n), range(out.f)))


def primitives(device: Device) -> tuple[FftTaskParallel, ...]:
    """The task-parallel FFT convolution."""
    return (FftTaskParallel(device),)
