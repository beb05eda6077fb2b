"""A network in a file of ONNX or PyTorch, which its own library computes on the CPU.

Its time and memory are measured once for each file, size of a window and number of threads. So they
are known before a run, as those of other primitives are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output
from znni.machine.machine import Device
from znni.network.layers import Model, Operation
from znni.network.model_files import measured, opened
from znni.network.models import Execution, Runtime
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applied_to


def window_output(layer: Operation, shape: Shape5, runtime: Runtime) -> Shape5 | None:
    """Return the shape of a window's output; None if it is no window of a library's model."""
    if not isinstance(layer, Model) or layer.runtime != runtime:
        return None
    fits = (shape.n, shape.f, shape.size) == (1, layer.in_features, layer.window)
    return shape._replace(f=layer.features) if fits else None


@dataclass(frozen=True)
class OtherLibrary:
    """ONNX Runtime or PyTorch on the CPU, for whole windows of a network in a file."""

    device: Device
    name: Runtime
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of one window's output."""
        return window_output(layer, shape, self.name)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the measured time and memory. All of the memory stays with the library."""
        model, out = applied_to(Model, self, layer, shape)
        window = measured(model, shape.size, Execution(self.device.threads))
        return Cost(
            flops=0.0,
            bytes_moved=shape.nbytes + out.nbytes,
            memory=Memory.beside(shape.nbytes + out.nbytes, workspace=0, resident=window.memory),
            efficiency=1.0,
            seconds=window.seconds,
        )

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run, with the file opened."""
        model, out = applied_to(Model, self, layer, shape)
        compute = opened(model, self.device.threads)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            np.copyto(y, compute(x))
            return y

        return run


def primitives(device: Device) -> tuple[OtherLibrary, ...]:
    """Return both libraries."""
    return OtherLibrary(device, "onnxruntime"), OtherLibrary(device, "pytorch")
