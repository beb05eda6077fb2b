"""The peer for whole networks on a GPU: max-pooling fragments in PyTorch by cuDNN, autotuned.

Layers up to a pool are computed some planes at a time, and all its fragments are stored. Fragments
of the first pool are then taken one by one, those of later pools a few at a time. So patches may
have more values than cuDNN counts, and nothing is computed twice. Plain operators are those that
networks are written with. Fused ones are faster and give the same. They are cuDNN's convolution
with bias and ReLU in one kernel, and fragments as strided views of the maxima at every offset,
which neighbouring windows share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.nn import functional

from bench.accuracy import Pooled
from bench.peers.torch_fragments import TorchFragments
from bench.peers.torch_network import UNDILATED
from bench.peers.torch_settings import PROPOSALS, TYPES, autotuned
from znni.core.shapes import Vec3, offsets
from znni.network.layers import Conv, SlidingLayer
from znni.network.network import Network
from znni.network.weights import Float32

Operators: TypeAlias = Literal["plain", "fused"]

# Values of the widest tensor of a slab or of some fragments. They keep a GPU busy.
MOST_VALUES = 2**27

# Ones and zeros that cuDNN's convolution wants for stride, padding and dilation.
ONES, ZEROS = [1, 1, 1], [0, 0, 0]


class TorchOnGpu(TorchFragments):
    """Dense output by fragments of every pool, on a GPU.

    Args:
        network: what to compute.
        kind: one of ``TYPES``.
        layout: of all arrays in memory, by PyTorch's name.
        operators: plain or fused.
        proposals: how many engines of cuDNN autotuning tries.
        device: by PyTorch's name.
    """

    def __init__(
        self,
        network: Network,
        kind: str,
        layout: str,
        operators: Operators,
        proposals: int = PROPOSALS,
        device: str = "cuda",
    ) -> None:
        threads = torch.get_num_threads()
        super().__init__(network, TYPES[kind], layout, threads, ram=0, device=device)
        self._settings = partial(autotuned, tf32=kind == "tf32", proposals=proposals)
        self._fused = operators == "fused"

    def timed(self, x: Float32) -> float:
        """Time a patch, from a tensor on the GPU to another."""
        with self._settings():
            return super().timed(x)

    def scaled_from_one_fragment(self, x: Float32) -> float:
        """Time the layers before the first pool and one of its fragments, scaled to a patch."""
        with self._settings():
            return super().scaled_from_one_fragment(x)

    def convolve(self, layer: Conv, x: Any, dilation: Vec3 = UNDILATED) -> Any:
        """Compute a convolution with bias and activation."""
        if not self._fused or layer.activation != "relu" or self.device == "cpu":
            return super().convolve(layer, x, dilation)
        weight, bias = self.parameters[layer.name]
        return torch.cudnn_convolution_relu(x, weight, bias, ONES, ZEROS, list(dilation), 1)

    def _fragments(self, image: Any) -> Callable[[Vec3], Any]:
        """Return a function for the first pool's fragment at an offset; all are stored."""
        stored = self._pooled(self.head, image, self.window).split(1)
        return dict(zip(offsets(self.window), stored, strict=True)).__getitem__

    def _layers(self, layers: tuple[SlidingLayer, ...], y: Any) -> Any:
        for index, layer in enumerate(layers):
            if not isinstance(layer, Conv):
                fragments = self._pooled(layers[:index], y, layer.window)
                rest = partial(self._layers, layers[index + 1 :])
                parts = fragments.split(self._fitting(fragments[0].numel()))
                return torch.cat([rest(part) for part in parts])
        return self._convolutions(layers, y)

    def _convolutions(self, layers: tuple[SlidingLayer, ...], y: Any) -> Any:
        for layer in layers:
            if isinstance(layer, Conv):
                y = self.convolve(layer, y)
        return y

    def _pooled(self, layers: tuple[SlidingLayer, ...], y: Any, window: Vec3) -> Any:
        """Compute convolutions and all fragments of the pool after them, some planes at a time.

        There are as many planes each time, so that cuDNN is autotuned once. The last ones overlap.
        """
        reach = sum(layer.kernel.z - 1 for layer in layers if isinstance(layer, Conv))
        planes = (y.shape[2] - reach) // window.z
        widest = max(conv.out_features for conv in self.network.convolutions)
        plane = y.shape[0] * widest * math.prod(y.shape[3:])
        slab = min(planes, max(1, self._fitting(plane) // window.z))
        fragments: Any = None
        for start in range(0, planes, slab):
            first = min(start, planes - slab)
            stop = (first + slab + 1) * window.z - 1 + reach
            part = self._convolutions(layers, y[:, :, first * window.z : stop])
            if fragments is None:
                size = (Vec3(*part.shape[2:]) // window)._replace(z=planes)
                fragments = self.empty((window.volume * part.shape[0], part.shape[1], *size))
            self._pool_into(fragments[:, :, first : first + slab], part, window)
        return fragments

    def _fitting(self, values: int) -> int:
        """Return how many parts, a power of two, make a tensor of ``MOST_VALUES``."""
        return 1 << max(0, (MOST_VALUES // values).bit_length() - 1)

    def _pool_into(self, fragments: Any, y: Any, window: Vec3) -> None:
        """Write all fragments of a pool; those of one offset follow each other."""
        reach = Vec3(*fragments.shape[2:]) * window
        if self._fused:
            y = _at_every_offset(y, window)
        for offset, out in zip(offsets(window), fragments.split(y.shape[0]), strict=True):
            if self._fused:
                out.copy_(y[(..., *_strided(offset, reach, window))])
            else:
                crop = y[(..., *_strided(offset, reach, UNDILATED))]
                out.copy_(functional.max_pool3d(crop, tuple(window)))


def _at_every_offset(y: Any, window: Vec3) -> Any:
    """Return the maxima of all windows, wherever they begin."""
    for axis, extent in enumerate(window, start=2):
        count = y.shape[axis] - extent + 1
        largest = y.narrow(axis, 0, count)
        for shift in range(1, extent):
            largest = torch.maximum(largest, y.narrow(axis, shift, count))
        y = largest
    return y


def _strided(start: Vec3, extent: Vec3, step: Vec3) -> tuple[slice, ...]:
    return tuple(slice(*axis) for axis in zip(start, start + extent, step, strict=True))


def reference_on_gpu(network: Network, device: str = "cuda") -> Pooled:
    """Return a network by plain pooling, in float64 by PyTorch."""
    threads = torch.get_num_threads()
    return TorchFragments(network, "float64", "contiguous_format", threads, 0, device).pooled


# The contestants: a class of accuracy, and operators.
NAMES: dict[str, tuple[str, Operators]] = {
    f"torch_{kind}" + "_fused" * (operators == "fused"): (kind, operators)
    for operators, kind in product(get_args(Operators), TYPES)
}
