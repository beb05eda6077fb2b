"""Fourier convolution of whole images by pruned transforms: ZNNi's primitive for GPUs.

The spectra of all images are held, and the kernels' spectra of one output map at a time. Kernels
are transformed anew in each call. This is as published (Zlateski, Lee and Seung, "ZNNi: maximizing
the inference throughput of 3D convolutional networks on CPUs and GPUs", SC'16), with two
differences: the input is not overwritten, and intermediate lines are pruned too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.activation import activate_over_maps
from znni.primitives.gpu.common.base import PerItemPrimitive
from znni.primitives.gpu.common.hardware import MOST_GRID_ROWS
from znni.primitives.gpu.common.number_formats import FLOAT32, NumberFormat
from znni.primitives.gpu.fft_pruned.launch import Forward, Inverse, Kernels
from znni.primitives.gpu.fft_pruned.work import IMAGES_TOGETHER, WORK_BYTES, PrunedWork

# Products have a row of blocks for some images each.
MOST_IMAGES = MOST_GRID_ROWS * IMAGES_TOGETHER


@dataclass(frozen=True)
class GpuFftPruned(PerItemPrimitive[PrunedWork]):
    """Whole-image Fourier convolution on a GPU."""

    numbers: NumberFormat = FLOAT32
    family: ClassVar[str] = "gpu_fft_pruned"

    def work(self, layer: Operation, shape: Shape5) -> PrunedWork | None:
        """Take any valid convolution, but decline more images than a launch counts."""
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv) or shape.n > MOST_IMAGES:
            return None
        return PrunedWork(shape, out, layer)

    def prepare(self, work: PrunedWork, weights: ConvWeights | None) -> Run:
        """Plan the transforms."""
        conv, shape, out = work.conv, work.shape, work.out
        given = conv_weights(conv, weights)
        spectrum, needed = work.spectrum, work.amounts
        kernels = Kernels(conv.activation)
        of_image = Forward(kernels, spectrum, shape.f, shape.size)
        of_kernels = Forward(kernels, spectrum, shape.f, conv.kernel)
        of_sums = Inverse(kernels, spectrum, out.f, out.size)
        weight, bias = cupy().asarray(given.weight), cupy().asarray(given.bias)

        def summed(x: Any, area: Any) -> Any:
            """Return the spectra (image, output map, number) of the sums."""
            sums = device_workspace((needed.outputs,), np.complex64).reshape(*out[:2], -1)
            spectra = device_workspace((needed.inputs,), np.complex64).reshape(shape.n, -1)
            for image, into in zip(x, spectra, strict=True):
                of_image.run(image, into, area)
            one = device_workspace((needed.kernels,), np.complex64).reshape(shape.f, -1)
            for number, kernel in enumerate(weight):
                of_kernels.run(kernel, one, area)
                pitch = out.f * spectrum.numbers
                kernels.multiply(spectra, one, sums[0, number], shape.n, pitch)
            return sums

        def run(x: Any) -> Any:
            y = new_device_output(out)
            area = device_workspace((WORK_BYTES,), np.uint8)
            for image, into in zip(summed(x, area), y, strict=True):
                of_sums.run(image, bias, into, area)
            activate_over_maps(y, conv.activation)
            return y

        return run


def primitives(device: Device) -> tuple[GpuFftPruned, ...]:
    """Return the Fourier convolution of whole images."""
    return (GpuFftPruned(device),)
