"""PyTorch's convolution of one layer, for a child process."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np

from bench.accuracy import sampled_error
from bench.noise import normal
from bench.torch_settings import TYPES
from znni.core.shapes import Shape5
from znni.network.network import Conv, PooledConv
from znni.network.weights import ConvWeights, Float32

LAYOUTS = {"": "contiguous_format", "_channels_last": "channels_last_3d"}
NAMES = tuple(f"torch_{dtype}{layout}" for dtype, layout in product(TYPES, LAYOUTS))


def same_class(name: str) -> tuple[str, ...]:
    """PyTorch's convolutions in the accuracy class of a primitive or peer."""
    dtype = (
        "bf16" if name.endswith(("bfloat16", "bfloat16_transient")) or "bf16" in name else "fp32"
    )
    return tuple(peer for peer in NAMES if peer.startswith(f"torch_{dtype}"))


class TorchConvolution:
    """A convolution with bias and ReLU, in float32 and bfloat16 and in both memory layouts.

    Args:
        layer: the convolution, with its pooling or without; its activation must be ReLU.
        weights: its parameters.
        shape: of the input.
        items: of the batch that are really computed; seconds are scaled to all, which a direct
            convolution's time is proportional to.
        threads: PyTorch's.
    """

    def __init__(
        self,
        layer: Conv | PooledConv,
        weights: ConvWeights,
        shape: Shape5,
        items: int,
        threads: int,
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self._layer, self._weights = layer, weights
        self._window = tuple(layer.pool.window) if isinstance(layer, PooledConv) else None
        self._x = normal(shape._replace(n=items))
        self._scale = shape.n / items

    def seconds(self, name: str) -> float:
        """Time one run; what converts the input to a type and layout is not counted."""
        arguments = self._arguments(name)
        start = time.perf_counter()
        _convolve(*arguments, self._window)
        return (time.perf_counter() - start) * self._scale

    def error(self, name: str) -> float:
        """Relative error against float64."""
        y = _convolve(*self._arguments(name), self._window)
        return sampled_error(self._x, np.asarray(y.float().numpy()), self._layer, self._weights)

    def _arguments(self, name: str) -> tuple[Any, Any, Any]:
        import torch

        _, kind, *layout = name.split("_", 2)
        dtype = getattr(torch, TYPES[kind])
        memory_format = getattr(torch, LAYOUTS["_" + layout[0] if layout else ""])

        def tensor(array: Float32) -> Any:
            made = torch.empty(array.shape, dtype=dtype, memory_format=memory_format)
            return made.copy_(torch.from_numpy(array))

        bias = torch.from_numpy(self._weights.bias).to(dtype)
        return tensor(self._x), tensor(self._weights.weight), bias


def _convolve(image: Any, kernel: Any, bias: Any, window: tuple[int, ...] | None) -> Any:
    import torch

    with torch.inference_mode():
        y = torch.relu_(torch.nn.functional.conv3d(image, kernel, bias))
        return y if window is None else torch.nn.functional.max_pool3d(y, window)
