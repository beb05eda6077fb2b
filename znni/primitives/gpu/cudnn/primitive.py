"""Convolution by NVIDIA's cuDNN, in each of its number formats, with and without workspace.

cuDNN's fast engines want maps innermost, or half the bits: a batch goes through them piece by
piece (``library``), each packed before and unpacked, through bias and activation, after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.device_arena import device_workspace, for_now, new_device_output
from znni.machine.machine import Device
from znni.network.network import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applying, convolved
from znni.primitives.gpu.common.activation import activate_over_maps, with_softmax
from znni.primitives.gpu.common.capability import capability_of
from znni.primitives.gpu.cudnn.formats import FORMATS, Format, maps_out
from znni.primitives.gpu.cudnn.graph import ConvolutionGraph, graph_key
from znni.primitives.gpu.cudnn.layout import Layout
from znni.primitives.gpu.cudnn.pieces import Pieces, pieces
from znni.primitives.gpu.cudnn.refusals import refused

# Workspace of an engine: some for weights in an order of its own; and, of those that may take more,
# as much again as the piece's packed input and output, which most others want to reorder.
LITTLE_WORKSPACE = 64 * 2**20

# Passes over input and output that packing and unpacking add to the convolution's own.
PASSES = 3


@dataclass(frozen=True)
class GpuCudnn:
    """cuDNN's convolution in one number format.

    Attributes:
        number: the format.
        reorders: whether its engine may take workspace for copies of input and output.
    """

    device: Device
    number: Format
    reorders: bool
    version = 1

    @property
    def name(self) -> str:
        """Its format, and what it may take."""
        return f"gpu_cudnn_{self.number.name}" + ("_workspace" if self.reorders else "")

    @property
    def accuracy(self) -> float:
        """Of the format."""
        return self.number.accuracy

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Any valid convolution of planes that cuDNN can count, and that it never refused."""
        found = self._found(layer, shape)
        return found and found[2]

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """A multiply-add for each tap of each voxel, of as many maps as engines take together."""
        conv, piece, out = applying(self._found(layer, shape), self, layer, shape)
        products = conv.in_features * conv.out_features * conv.kernel.volume
        together = self.number.maps_in(conv.in_features) * maps_out(conv.out_features)
        cost = Cost(
            flops=2.0 * out.n * out.size.volume * together * conv.kernel.volume,
            bytes_moved=PASSES * (shape.nbytes + out.nbytes),
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=self._packed_bytes(piece) + self._limit(piece),
                resident=products * self.number.nbytes + 4 * conv.out_features,
            ),
            efficiency=self.number.share,
        )
        return with_softmax(cost, conv.activation, out)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Pack the weights, and choose cuDNN's engine.

        Raises:
            InvalidInput: cuDNN is not installed.
            RunFailed: it has no engine within the workspace declared.
        """
        conv, piece, out = applying(self._found(layer, shape), self, layer, shape)
        given = conv_weights(conv, weights)
        layout, limit = Layout(self.number, conv.activation), self._limit(piece)
        graph = ConvolutionGraph(conv, piece, self.number, limit)
        packed_weights = self._numbers(Shape5(*conv.weight_shape))
        with for_now():
            layout.pack(cupy().asarray(given.weight), packed_weights)
        bias = cupy().asarray(given.bias)
        self._choose(graph, layout, piece, packed_weights)

        def run(x: Any) -> Any:
            y = new_device_output(out)
            packed_in = self._workspace(piece.shape.elements)
            packed_out = self._workspace(piece.out.elements)
            workspace = device_workspace((limit,), np.uint8)
            for image, plane in piece:
                images = slice(image, image + piece.out.n)
                seen = slice(plane, plane + piece.shape.z)
                layout.pack(x[images, :, seen], packed_in)
                graph.run(
                    packed_in.data.ptr, packed_weights.data.ptr, packed_out.data.ptr,
                    workspace.data.ptr,
                )  # fmt: skip
                planes = slice(plane, plane + piece.out.z)
                layout.unpack(packed_out, bias, y[images, :, planes])
            activate_over_maps(y, conv.activation)
            return y

        return run

    def _choose(self, graph: ConvolutionGraph, layout: Layout, piece: Pieces, weights: Any) -> None:
        x, y = (
            cupy().cuda.Memory(s.elements * self.number.nbytes) for s in (piece.shape, piece.out)
        )
        layout.fill(np.uintp(x.ptr), piece.shape.elements)
        graph.choose(x.ptr, weights.data.ptr, y.ptr)

    def _numbers(self, shape: Shape5) -> Any:
        """An array that holds as many numbers, whatever they are called in CuPy."""
        return cupy().empty(shape.elements * self.number.nbytes, np.uint8)

    def _workspace(self, elements: int) -> Any:
        return device_workspace((elements * self.number.nbytes,), np.uint8)

    def _packed_bytes(self, piece: Pieces) -> int:
        return (piece.shape.elements + piece.out.elements) * self.number.nbytes

    def _limit(self, piece: Pieces) -> int:
        return LITTLE_WORKSPACE + (self._packed_bytes(piece) if self.reorders else 0)

    def _found(self, layer: Operation, shape: Shape5) -> tuple[Conv, Pieces, Shape5] | None:
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv):
            return None
        piece = pieces(layer, shape, out, self.number.nbytes)
        if piece is None or self._is_refused(layer, piece):
            return None
        return layer, piece, out

    def _is_refused(self, conv: Conv, piece: Pieces) -> bool:
        if not (known := refused()):  # as nearly always, and searches ask often
            return False
        return (self.device.name, graph_key(conv, piece, self.number, self._limit(piece))) in known


def primitives(device: Device) -> tuple[GpuCudnn, ...]:
    """Each format that the GPU multiplies, with workspace and without, where cuDNN is installed."""
    if not device.cudnn:
        return ()
    able = (number for number in FORMATS if capability_of(device) >= number.capability)
    return tuple(GpuCudnn(device, number, more) for number in able for more in (False, True))
