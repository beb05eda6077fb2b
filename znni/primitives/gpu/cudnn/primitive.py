"""Convolution by NVIDIA's cuDNN, in each of its number formats, with and without workspace.

cuDNN's fast engines take arrays with maps innermost, or numbers of half the bits. So a batch is
computed piece by piece (``graph``). Each piece is packed before. Afterwards it is unpacked, and
bias and activation are applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.device_arena import device_workspace, for_now, new_device_output
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.activation import activate_over_maps
from znni.primitives.gpu.common.base import ShapedPrimitive
from znni.primitives.gpu.common.hardware import capability_of, chip_of
from znni.primitives.gpu.cudnn.formats import FORMATS, Format
from znni.primitives.gpu.cudnn.graph import INSTALL, ConvolutionGraph, graph_key
from znni.primitives.gpu.cudnn.layout import Layout
from znni.primitives.gpu.cudnn.pieces import Pieces, pieces
from znni.primitives.gpu.cudnn.refusals import refused
from znni.primitives.gpu.cudnn.work import CudnnWork, packed_bytes

# Bytes of workspace that every engine may take, for weights in an order of its own. An engine that
# may reorder takes as much again as a piece's packed input and output, which most of them copy.
LITTLE_WORKSPACE = 64 * 2**20


@dataclass(frozen=True)
class GpuCudnn(ShapedPrimitive[CudnnWork]):
    """cuDNN's convolution in one number format.

    Attributes:
        reorders: whether its engine may take workspace for copies of input and output.
    """

    numbers: Format
    reorders: bool
    family: ClassVar[str] = "gpu_cudnn"
    is_steady: ClassVar[bool] = False  # what cuDNN refuses is declined from then on

    @property
    def name(self) -> str:
        """The name in the catalogue: of the format, and whether engines may reorder."""
        return super().name + ("_workspace" if self.reorders else "")

    def work(self, layer: Operation, shape: Shape5) -> CudnnWork | None:
        """Decline planes that cuDNN cannot count, and convolutions that it has refused."""
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv):
            return None
        piece = pieces(layer, shape, out, self.numbers.nbytes)
        if piece is None or self._is_refused(layer, piece):
            return None
        limit, chip = self._limit(piece), chip_of(self.device)
        return CudnnWork(shape, out, layer, self.numbers, piece, limit, chip)

    def prepare(self, work: CudnnWork, weights: ConvWeights | None) -> Run:
        """Pack the weights, and choose cuDNN's engine.

        Raises:
            InvalidInput: cuDNN is not installed.
            RunFailed: cuDNN has no engine within the workspace that was declared.
        """
        conv, piece, limit = work.conv, work.piece, work.limit
        given = conv_weights(conv, weights)
        layout = Layout(self.numbers, conv.activation)
        graph = ConvolutionGraph(conv, piece, self.numbers, limit)
        packed_weights = self._numbers(Shape5(*conv.weight_shape))
        with for_now():
            layout.pack(cupy().asarray(given.weight), packed_weights)
        bias = cupy().asarray(given.bias)
        self._choose(graph, layout, piece, packed_weights)

        def run(x: Any) -> Any:
            y = new_device_output(work.out)
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
            cupy().cuda.Memory(s.elements * self.numbers.nbytes) for s in (piece.shape, piece.out)
        )
        layout.fill(np.uintp(x.ptr), piece.shape.elements)
        graph.choose(x.ptr, weights.data.ptr, y.ptr)

    def _numbers(self, shape: Shape5) -> Any:
        """Return memory for as many numbers of the format, which CuPy may have no type for."""
        return cupy().empty(shape.elements * self.numbers.nbytes, np.uint8)

    def _workspace(self, elements: int) -> Any:
        return device_workspace((elements * self.numbers.nbytes,), np.uint8)

    def _limit(self, piece: Pieces) -> int:
        return LITTLE_WORKSPACE + (packed_bytes(piece, self.numbers) if self.reorders else 0)

    def _is_refused(self, conv: Conv, piece: Pieces) -> bool:
        if not (known := refused()):  # nearly always, and a search asks often
            return False
        return (self.device.name, graph_key(conv, piece, self.numbers, self._limit(piece))) in known


# The GPUs that have these primitives.
NEEDS = f"cuDNN; {INSTALL}"


def primitives(device: Device) -> tuple[GpuCudnn, ...]:
    """Return each format that the GPU multiplies, with and without workspace, if cuDNN is there."""
    if not device.cudnn:
        return ()
    able = (format_ for format_ in FORMATS if capability_of(device) >= format_.capability)
    return tuple(GpuCudnn(device, format_, more) for format_ in able for more in (False, True))
