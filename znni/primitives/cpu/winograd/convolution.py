"""One layer's convolution at points, ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ONE, Vec3
from znni.machine.arena import workspace
from znni.machine.arrays import empty_aligned
from znni.network.weights import ConvWeights, Float32
from znni.primitives.cpu.common.activation import (
    activate_further,
    addresses,
    sum_output,
    vector_finish,
)
from znni.primitives.cpu.common.image_rows import image_arguments
from znni.primitives.cpu.common.phases import PhaseKernel, PhaseSeries, run_phases
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.common.vector_activation import curve
from znni.primitives.cpu.common.workers import workers
from znni.primitives.cpu.fft_tiled.overlap_save import tile_table
from znni.primitives.cpu.fft_tiled.tile_transform import along_axes
from znni.primitives.cpu.fft_tiled.tiled_convolution import Image
from znni.primitives.cpu.winograd.passes import (
    batch_pass,
    products_pass,
    results_pass,
    samples_pass,
)
from znni.primitives.cpu.winograd.strips import Strips

Indices: TypeAlias = NDArray[np.int64]

# Shares of a pass per worker: enough for all workers to end together.
SHARES_PER_WORKER = 8


class WinogradConvolution:
    """A layer ready to run: samples to points, products, and products to outputs, by batch.

    An interruption takes effect at the end of a shared batch, or of some of the workers' own.

    Args:
        strips: strips of the layer.
        weights: weights of the layer.
        threads: number of workers.
        adds: True to add to another value, before the activation.
    """

    def __init__(
        self, strips: Strips, weights: ConvWeights, threads: int, *, adds: bool = False
    ) -> None:
        self._strips = strips
        self._workers = workers(threads)
        own = strips.own
        self._samples = samples_pass(strips.filterings, strips.across, own)
        self._products = products_pass(own)
        self._results = results_pass(
            strips.filterings, strips.across, own, curve(strips.layer.activation), adds=adds
        )
        self._places = strips.tiling.places()
        self._values = strips.values_of_points()
        self._finish = vector_finish(strips.layer, weights)
        self._kernels = self._transformed(weights.weight)

    def __call__(self, x: Float32, *others: Float32) -> Float32:
        """Return the output (n, f', z, y, x) for an input (n, f, z, y, x).

        A summed convolution also takes the value to which it adds.
        """
        strips = self._strips
        y = sum_output(strips.out, others)
        scratch = workspace((self._workers.threads, strips.scratch_floats), np.float32)
        places = [part.ctypes.data for part in scratch]
        images = self._image(x, strips.layer.stride), self._image(y, ONE)
        if strips.own:
            passes = self._passes(*images, strips.own_samples, strips.own_products)
            self._run_own(passes, places)
        else:
            samples = workspace((strips.sample_floats,), np.float32)
            products = workspace((strips.product_floats,), np.float32)
            passes = self._passes(*images, samples.ctypes.data, products.ctypes.data)
            for batch in zip(*(each.phases() for each in passes), strict=True):
                run_phases(batch, places, self._workers)
        activate_further(y, strips.layer, self._workers)
        return y

    def _image(self, array: Float32, step: Vec3) -> Image:
        """Return an array with the places of its tiles, where outputs are ``step`` voxels apart."""
        return Image(array, tile_table(self._places, array, step))

    def _run_own(self, passes: Sequence[PhaseSeries], scratch: Sequence[int]) -> None:
        """Run all batches; each worker does whole batches alone."""
        strips = self._strips
        table = np.stack([each.addresses for each in passes], axis=1)
        at_once = strips.at_once * self._workers.threads
        for first in range(0, len(table), at_once):
            part = table[first : first + at_once]
            phase = batch_pass().phase(
                len(part),
                samples=self._samples.kernel.address,
                products=self._products.kernel.address,
                results=self._results.kernel.address,
                in_groups=strips.in_groups,
                out_groups=strips.out_groups,
                batches=part.ctypes.data,
            )
            run_phases([phase], scratch, self._workers)

    def _passes(self, x: Image, y: Image, samples: int, products: int) -> list[PhaseSeries]:
        """Return each of the three passes for all batches.

        Args:
            x: the input.
            y: the output.
            samples: address of the samples at points, or their place in a worker's scratch.
            products: address of the products at points, or their place in a worker's scratch.
        """
        strips, most = self._strips, self._strips.batch
        starts = np.arange(0, strips.tiling.count, most)
        counts = (strips.tiling.count - starts).clip(max=most)
        share = -(-strips.points // self._shares)
        multiply = self._products.phase(
            -(-strips.points // share),
            samples=samples,
            samples_stride=strips.point_stride(strips.in_groups),
            samples_row=strips.in_groups * LANES,
            products=products,
            products_stride=strips.point_stride(strips.out_groups),
            products_row=strips.out_groups * LANES,
            kernels=self._kernels.ctypes.data,
            rows=0,
            in_features=strips.layer.in_features,
            groups=strips.out_groups,
            points=strips.points,
            points_per_share=share,
            values=self._values[0].ctypes.data,
            first_values=self._values[1].ctypes.data,
        )
        read, written = strips.read, strips.tiling.written
        return [
            self._image_passes(self._samples, x, samples, read, starts, counts),
            self._products.series(multiply, rows=counts * strips.across),
            self._image_passes(self._results, y, products, written, starts, counts),
        ]

    @property
    def _shares(self) -> int:
        return 1 if self._strips.own else self._workers.threads * SHARES_PER_WORKER

    def _image_passes(
        self,
        kernel: PhaseKernel,
        image: Image,
        values: int,
        inner: Vec3,
        starts: Indices,
        counts: Indices,
    ) -> PhaseSeries:
        """Return the pass that transforms strips of an image, or back into one."""
        strips = self._strips
        maps = image.array.shape[1]
        groups = -(-maps // LANES)
        share = max(1, strips.batch * groups // max(groups, self._shares))
        row_stride = groups * LANES
        phase = kernel.phase(
            -(-strips.batch // share) * groups,
            **image_arguments("array", image.array),
            maps=maps,
            table=0,
            tiles=0,
            tiles_per_share=share,
            **along_axes("inner", inner),
            spectra=values,
            number=LANES,
            tile_stride=strips.across * row_stride,
            row_stride=row_stride,
            point_stride=strips.point_stride(groups),
            **addresses(self._finish),
        )
        tables = image.table.ctypes.data + starts * image.table.strides[0]
        return kernel.series(phase, table=tables, tiles=counts)

    def _transformed(self, weight: Float32) -> Float32:
        """Return the kernels of all values, in the shape ``Strips.kernel_shape``."""
        strips = self._strips
        z, y, x = (axis.kernel_matrix().astype(np.float32) for axis in strips.filterings)
        kernels = empty_aligned(strips.kernel_shape, np.float32)
        taps_z, taps_y, taps_x = weight.shape[2:]
        at_once = strips.maps_transformed_at_once

        def task(_worker: int, group: int) -> None:
            """Transform the kernels of 16 output maps axis by axis, some input maps at a time."""
            part = weight[group * LANES : (group + 1) * LANES]
            for first in range(0, weight.shape[1], at_once):
                some = part[:, first : first + at_once]
                padded = np.zeros((*some.shape[2:], some.shape[1], LANES), np.float32)
                padded[..., : len(some)] = some.transpose(2, 3, 4, 1, 0)
                along_z = z @ padded.reshape(taps_z, -1)
                along_y = y @ along_z.reshape(len(z), taps_y, -1)
                along_x = x @ along_y.reshape(len(z) * len(y), taps_x, -1)
                target = kernels[:, group, first : first + at_once]
                target[:] = along_x.reshape(target.shape)

        self._workers.for_each(task, range(strips.out_groups))
        return kernels
