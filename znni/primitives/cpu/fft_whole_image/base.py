"""The common base of both whole-image FFT convolutions; they differ in what they hold at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to, convolved
from znni.primitives.cpu.common.activation import activate_further, with_activation
from znni.primitives.cpu.fft_whole_image.blocking import Blocking
from znni.primitives.cpu.fft_whole_image.fft_layer import FftLayer


@dataclass(frozen=True)
class WholeImageFft(ABC):
    """Convolution by whole-image FFT on the CPU.

    Attributes:
        version: number that is raised when its speed changes.
        group: largest number of output maps computed in one pass over the inputs' spectra.
    """

    device: Device
    name: str
    accuracy: float = 2e-5
    version: ClassVar[int]
    group: ClassVar[int]

    @abstractmethod
    def working_bytes(self, blocking: Blocking) -> int:
        """Return the peak bytes of a call, including its input and output."""

    @abstractmethod
    def workspace_bytes(self, blocking: Blocking) -> int:
        """Return the peak bytes of a call beside its input and output."""

    @abstractmethod
    def bytes_moved(self, blocking: Blocking) -> float:
        """Return the bytes to and from main memory, without a softmax."""

    @abstractmethod
    def handed_out(self, blocking: Blocking) -> HandedOut:
        """Return the tasks that Python hands out, without a softmax."""

    @abstractmethod
    def convolution(self, steps: FftLayer) -> Run:
        """Return a run of all steps, without a softmax."""

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for any convolution."""
        return convolved(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: transforms, products, and each pass over the spectra."""
        blocking = self._blocking(layer, shape)
        cost = Cost(
            flops=blocking.flops,
            bytes_moved=self.bytes_moved(blocking),
            memory=Memory(
                blocking.resident_bytes,
                self.working_bytes(blocking),
                self.workspace_bytes(blocking),
            ),
            efficiency=blocking.efficiency,
            handed=self.handed_out(blocking),
        )
        activation, threads = blocking.layer.activation, self.device.threads
        return with_activation(cost, activation, blocking.out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Plan the transforms, and compile the kernels."""
        blocking = self._blocking(layer, shape)
        convolve = self.convolution(FftLayer(blocking, conv_weights(blocking.layer, weights)))

        def run(x: Float32) -> Float32:
            y = convolve(x)
            activate_further(y, blocking.layer, blocking.workers)
            return y

        return run

    def _blocking(self, layer: Operation, shape: Shape5) -> Blocking:
        conv, _ = applied_to(Conv, self, layer, shape)
        return Blocking(conv, shape, self.device.threads, self.group)
