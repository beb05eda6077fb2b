"""Fourier convolution of whole images by pruned transforms: ZNNi's primitive for GPUs.

The spectra of all images are held, and those of the kernels of one output map at a time, which are
transformed anew in each call. As published (Zlateski, Lee and Seung, "ZNNi: maximizing the
inference throughput of 3D convolutional networks on CPUs and GPUs", SC'16), but for the input,
which its owner keeps, and for what transforms hold halfway, which is pruned too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.options import ACCURACIES
from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.machine import Device
from znni.network.network import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applied_to, convolved
from znni.primitives.gpu.common.activation import activate_over_maps, with_softmax
from znni.primitives.gpu.fft_pruned.geometry import (
    WORK_BYTES,
    Spectrum,
    amounts,
    bytes_moved,
    flops,
)
from znni.primitives.gpu.fft_pruned.transforms import Forward, Inverse, Kernels

# Share of the nominal operations per second, were it not for the bytes that they move.
EFFICIENCY = 0.15


@dataclass(frozen=True)
class GpuFftPruned:
    """Whole-image Fourier convolution on a GPU."""

    device: Device
    name: str = "gpu_fft_pruned"
    accuracy: float = ACCURACIES["float32"]
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Any valid convolution."""
        return convolved(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Transforms of the lines that are not zero, and a product for each pair of maps."""
        conv, out = applied_to(Conv, self, layer, shape)
        cost = Cost(
            flops=flops(conv, shape, out),
            bytes_moved=shape.nbytes + out.nbytes + bytes_moved(conv, shape, out),
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=amounts(conv, shape, out).workspace,
                resident=4 * conv.parameters,
            ),
            efficiency=EFFICIENCY,
        )
        return with_softmax(cost, conv.activation, out)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Plan the transforms."""
        conv, out = applied_to(Conv, self, layer, shape)
        given = conv_weights(conv, weights)
        spectrum, needed = Spectrum.of(shape.size), amounts(conv, shape, out)
        kernels = Kernels(conv.activation)
        of_image = Forward(kernels, spectrum, shape.f, shape.size)
        of_kernels = Forward(kernels, spectrum, shape.f, conv.kernel)
        of_sums = Inverse(kernels, spectrum, out.f, out.size)
        weight, bias = cupy().asarray(given.weight), cupy().asarray(given.bias)

        def summed(x: Any, work: Any) -> Any:
            """Spectra (image, output map, number) of the sums."""
            sums = device_workspace((needed.outputs,), np.complex64).reshape(*out[:2], -1)
            spectra = device_workspace((needed.inputs,), np.complex64).reshape(shape.n, -1)
            for image, into in zip(x, spectra, strict=True):
                of_image.run(image, into, work)
            one = device_workspace((needed.kernels,), np.complex64).reshape(shape.f, -1)
            for number, kernel in enumerate(weight):
                of_kernels.run(kernel, one, work)
                pitch = out.f * spectrum.numbers
                kernels.multiply(spectra, one, sums[0, number], shape.n, pitch)
            return sums

        def run(x: Any) -> Any:
            y = new_device_output(out)
            work = device_workspace((WORK_BYTES,), np.uint8)
            for image, into in zip(summed(x, work), y, strict=True):
                of_sums.run(image, bias, into, work)
            activate_over_maps(y, conv.activation)
            return y

        return run


def primitives(device: Device) -> tuple[GpuFftPruned, ...]:
    """The Fourier convolution of whole images."""
    return (GpuFftPruned(device),)
