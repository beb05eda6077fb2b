"""A network in a file of PyTorch, which PyTorch computes on the GPU.

Its time, memory and error are measured once for each file, size of a window and GPU. A number
format other than float32 is taken only if the whole network's error is within the format's accuracy
class.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from znni.core.errors import InvalidInput
from znni.core.option_types import ACCURACIES
from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda import cupy
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Model, Operation
from znni.network.model_files import UNCOMPILED, Measured, is_compiled, measured, opened_on_gpu
from znni.network.models import NUMBERS, Execution, Numbers
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applied_to
from znni.primitives.other_library.primitive import window_output

log = logging.getLogger("znni")

# The accuracy of each number format. Float16 has as many bits as tf32.
ACCURACY: dict[Numbers, float] = {
    "float32": ACCURACIES["float32"],
    "tf32": ACCURACIES["tf32"],
    "float16": ACCURACIES["tf32"],
    "bfloat16": ACCURACIES["bfloat16"],
}


@dataclass(frozen=True)
class PytorchOnGpu:
    """PyTorch on a GPU, for whole windows of a network in a file.

    Attributes:
        device: the GPU.
        numbers: the numbers that are multiplied.
        compiled: whether PyTorch compiles the network first. Such a primitive applies if that was
            done before (``znni.inference.model_compilation``).
    """

    device: Device
    numbers: Numbers
    compiled: bool
    version = 1

    @property
    def name(self) -> str:
        """The name, with the kind of numbers."""
        return f"gpu_pytorch_{self.numbers}{'_compiled' * self.compiled}"

    @property
    def accuracy(self) -> float:
        """The largest relative error of a network that it computes."""
        return ACCURACY[self.numbers]

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of a window's output; None if these numbers are too inaccurate."""
        out = window_output(layer, shape, "pytorch")
        if out is None or not isinstance(layer, Model):
            return None
        if self.compiled and not is_compiled(layer, shape.size, self.execution):
            return None
        if _refusal(layer, shape.size, self.execution):
            return None
        accurate = self._window(layer, shape.size).error <= self.accuracy
        return out if accurate else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the measured time and memory. PyTorch keeps its memory between windows."""
        model, out = applied_to(Model, self, layer, shape)
        window, arrays = self._window(model, shape.size), shape.nbytes + out.nbytes
        return Cost(
            flops=0.0,
            bytes_moved=arrays,
            memory=Memory.beside(arrays, workspace=0, resident=window.gpu_memory),
            efficiency=1.0,
            seconds=window.seconds,
            writes_views=True,
        )

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run, with the file opened."""
        model, out = applied_to(Model, self, layer, shape)
        compute = opened_on_gpu(model, shape.size, self.execution)

        def run(x: Any) -> Any:
            y = new_device_output(out)
            compute(x, y, cupy().cuda.get_current_stream().ptr)
            return y

        return run

    @property
    def execution(self) -> Execution:
        """The GPU, and how PyTorch computes on it."""
        return Execution(gpu=self.device.name, numbers=self.numbers, compiled=self.compiled)

    def _window(self, model: Model, size: Vec3) -> Measured:
        return measured(model, size, self.execution)


@lru_cache(maxsize=64)
def _refusal(model: Model, size: Vec3, on: Execution) -> str:
    """Return why PyTorch cannot compute a window on a GPU, and warn of it; empty if it can."""
    try:
        measured(model, size, on)
    except InvalidInput as error:
        if on.compiled:
            log.warning("%s; this is its compiled form, %s", error, UNCOMPILED)
        else:
            log.warning("no GPU computes %s", error)
        return str(error)
    return ""


def host_bytes(models: Iterable[Model], able: Iterable[object]) -> int:
    """Return the most bytes of the host that PyTorch takes to compute windows on a GPU.

    Args:
        able: the primitives that may compute them, and others.
    """
    ways = [it for it in able if isinstance(it, PytorchOnGpu)]
    total = 0
    for model in models:
        if model.window is not None:
            x = Shape5(1, model.in_features, *model.window)
            taken = (it._window(model, x.size).memory for it in ways if it.out_shape(model, x))
            total += max(taken, default=0)
    return total


def primitives(device: Device) -> tuple[PytorchOnGpu, ...]:
    """Return PyTorch with each kind of numbers, compiled and layer by layer."""
    return tuple(
        PytorchOnGpu(device, numbers, compiled) for compiled in (False, True) for numbers in NUMBERS
    )
