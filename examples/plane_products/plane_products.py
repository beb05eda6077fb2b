"""A convolution on the CPU: one matrix product for each plane of the output, by NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to, convolved
from znni.primitives.cpu.common.workers import workers


@dataclass(frozen=True)
class PlaneProducts:
    """A convolution that copies the windows of a plane into the columns of a matrix."""

    device: Device
    name: str = "plane_products"
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for plain convolutions with these activations only."""
        plain = isinstance(layer, Conv) and layer.activation in ("identity", "relu")
        return convolved(layer, shape) if plain else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost. Each thread has the columns and the sums of one plane."""
        conv, out = applied_to(Conv, self, layer, shape)
        threads, plane = self.device.threads, out.y * out.x
        return Cost(
            flops=2.0 * out.elements * conv.fan_in,
            bytes_moved=conv.kernel.z * shape.nbytes + out.nbytes,
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=4 * threads * (conv.fan_in + out.f) * plane,
            ),
            efficiency=0.3,
            handed=HandedOut(rounds=1, tasks=out.n * out.z),
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare the layer: its weights are a matrix as they are."""
        conv, out = applied_to(Conv, self, layer, shape)
        given = conv_weights(conv, weights)
        matrix, bias = given.weight.reshape(out.f, conv.fan_in), given.bias[:, np.newaxis]
        pool, kernel, plane = workers(self.device.threads), conv.kernel, out.y * out.x

        def run(x: Float32) -> Float32:
            y = new_output(out)
            columns = workspace((pool.threads, conv.fan_in, plane), np.float32)
            sums = workspace((pool.threads, out.f, plane), np.float32)

            def compute(worker: int, place: tuple[int, int]) -> None:
                n, z = place
                rows, summed = columns[worker], sums[worker]
                windows = sliding_window_view(x[n, :, z : z + kernel.z], kernel[1:], axis=(2, 3))
                by_tap = rows.reshape(conv.in_features, *kernel, out.y, out.x)
                np.copyto(by_tap, windows.transpose(0, 1, 4, 5, 2, 3))
                np.matmul(matrix, rows, out=summed)
                summed += bias
                if conv.activation == "relu":
                    np.maximum(summed, 0, out=summed)
                y[n, :, z] = summed.reshape(out.f, out.y, out.x)

            pool.for_each(compute, [(n, z) for n in range(out.n) for z in range(out.z)])
            return y

        return run


def primitives(device: Device) -> tuple[PlaneProducts, ...]:
    """Return the primitives of a device. There are none for a GPU."""
    return (PlaneProducts(device),) if device.kind == "cpu" else ()
