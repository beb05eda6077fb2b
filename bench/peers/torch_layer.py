"""PyTorch's convolution of one layer, on a CPU in a process of its own, or on a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from bench.accuracy import OnDevice, normal, sampled_error
from bench.child import Child, ChildFailed
from bench.peers.torch_settings import (
    CPU_KINDS,
    ENVIRONMENT,
    NOT_INSTALLED,
    PROPOSALS,
    TYPES,
    autotuned,
    has_torch,
)
from bench.record import Row
from bench.rounds import Effort, Stopwatch
from znni.core.shapes import Shape5
from znni.network.layers import Conv, PooledConv
from znni.network.weights import ConvWeights

LAYOUTS = {"": "contiguous_format", "_channels_last": "channels_last_3d"}
CPU_NAMES = tuple(f"torch_{kind}{layout}" for kind, layout in product(CPU_KINDS, LAYOUTS))
GPU_NAMES = tuple(f"torch_{kind}{layout}" for kind, layout in product(TYPES, LAYOUTS))

# A direct convolution on a CPU reaches at least this share of the arithmetic ceiling.
LEAST_SHARE_OF_PEAK = 0.4

# Elements of a tensor that cuDNN counts; larger tensors go to slower code.
MOST_ELEMENTS = 2**31 - 1

# About as many operations as one run of PyTorch has on a GPU. They keep a GPU busy, and are few
# enough that autotuning ends, though it tries engines a hundred times slower than the best.
RUN_FLOPS = 2e12


def same_class(name: str) -> tuple[str, ...]:
    """Return PyTorch's convolutions on a CPU in the accuracy class of a primitive or peer."""
    half = name.endswith(("bfloat16", "bfloat16_transient")) or "bf16" in name
    return tuple(peer for peer in CPU_NAMES if peer.startswith("torch_bf16") == half)


class TorchLayer:
    """A convolution with bias and ReLU, and its pooling if it has one, in one type and layout.

    Args:
        name: one of ``CPU_NAMES`` or ``GPU_NAMES``.
        layer: the operation; its activation must be ReLU.
        weights: its parameters.
        x: input (n, f, z, y, x), an array of NumPy or CuPy. It is converted to a type and layout
            here, which is not timed.
        device: where it computes, by PyTorch's name.
        proposals: how many engines of cuDNN autotuning tries on a GPU.
    """

    def __init__(
        self,
        name: str,
        layer: Conv | PooledConv,
        weights: ConvWeights,
        x: Any,
        device: str = "cpu",
        proposals: int = PROPOSALS,
    ) -> None:
        import torch

        _, kind, *layout = name.split("_", 2)
        dtype = getattr(torch, TYPES[kind])
        memory_format = getattr(torch, LAYOUTS["_" + layout[0] if layout else ""])
        on_gpu = partial(autotuned, tf32=kind == "tf32", proposals=proposals)
        self._settings = nullcontext if device == "cpu" else on_gpu

        def tensor(array: Any) -> Any:
            made = torch.empty(array.shape, dtype=dtype, device=device, memory_format=memory_format)
            return made.copy_(torch.as_tensor(array))

        self._window = tuple(layer.pool.window) if isinstance(layer, PooledConv) else None
        self._arguments = tensor(x), tensor(weights.weight)
        self._bias = torch.from_numpy(weights.bias).to(device, dtype)

    def __call__(self) -> Any:
        """Return the output, a tensor; on a GPU the first call autotunes."""
        import torch

        with torch.inference_mode(), self._settings():
            y = torch.relu_(torch.nn.functional.conv3d(*self._arguments, self._bias))
            return y if self._window is None else torch.nn.functional.max_pool3d(y, self._window)

    def output(self) -> OnDevice:
        """Return the output, of which parts can be taken to the host."""
        return OnDevice(self())


class TorchConvolution:
    """A convolution in every type and layout that a CPU has, for a child process.

    Args:
        layer: the convolution, with its pooling or without; its activation must be ReLU.
        weights: its parameters.
        shape: of the input.
        items: the part of the batch that is really computed. Seconds are scaled to the whole
            batch, because a direct convolution's time is proportional to it.
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
        self._x = normal(shape._replace(n=items))
        self._scale = shape.n / items

    def seconds(self, name: str) -> float:
        """Time one run, without the conversion of the input to a type and layout."""
        work = self._ready(name)
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * self._scale

    def error(self, name: str) -> float:
        """Return the relative error against float64."""
        y = self._ready(name)().float().numpy()
        return sampled_error(self._x, np.asarray(y), self._layer, self._weights)

    def _ready(self, name: str) -> TorchLayer:
        return TorchLayer(name, self._layer, self._weights, self._x)


class CpuPeers:
    """PyTorch's contestants on a CPU, in a child process, and what is known about them.

    Args:
        child: serves a ``TorchConvolution``; None if there is none.
        part: what is measured, if not the whole batch.
        failed: by name, why there is no time, or no further one.
        names: some of ``CPU_NAMES``.
    """

    def __init__(
        self,
        child: Child | None,
        part: str | None,
        failed: dict[str, str],
        names: tuple[str, ...],
    ) -> None:
        self._child, self._part = child, part
        self.failed = failed
        self.stopwatches: dict[str, Stopwatch] = {}
        if child:
            self.stopwatches = {
                name: child.stopwatch(failed, name, "seconds", name) for name in names
            }

    def row(self, name: str) -> Row:
        """Return the error, and a note on what was not measured."""
        if self._child is None:
            return {}
        error, notes = None, [self._part] if self._part else []
        if name in self.failed:
            notes.append(f"failed later: {self.failed[name]}")
        try:
            error = self._child.call("error", name)
        except ChildFailed as failure:
            notes.append(f"time only: {failure}")
        return {"error": error, **({"measured": "; ".join(notes)} if notes else {})}


@contextmanager
def cpu_peers(
    layer: Conv | PooledConv,
    shape: Shape5,
    weights: ConvWeights,
    threads: int,
    effort: Effort,
    least: float,
    names: tuple[str, ...],
) -> Iterator[CpuPeers]:
    """Start PyTorch's contestants on a CPU.

    They compute as many items of the batch as are likely to stay within the budget.

    Args:
        layer: the operation.
        shape: of its input.
        weights: its parameters.
        threads: PyTorch's.
        effort: how long to measure.
        least: seconds that an item takes at the arithmetic ceiling.
        names: some of ``CPU_NAMES``; without any, nothing is started.
    """
    reason = None if has_torch() else NOT_INSTALLED
    if has_torch() and least > effort.budget:
        reason = f"one input takes at least {least:.0f} s, beyond {effort.budget:.0f} s"
    if reason or not names:
        yield CpuPeers(None, None, dict.fromkeys(names, reason or ""), names)
        return
    one_run = effort.budget / (effort.repeats + 1) * LEAST_SHARE_OF_PEAK
    items = max(1, min(shape.n, int(one_run / least)))
    part = f"{items} of {shape.n} inputs" if items < shape.n else None
    with Child(
        TorchConvolution, layer, weights, shape, items, threads, environment=ENVIRONMENT
    ) as child:
        yield CpuPeers(child, part, {}, names)


def part_at_once(layer: Conv | PooledConv, shape: Shape5) -> Shape5:
    """Return what PyTorch computes in a run on a GPU: some images of a batch, or planes of one.

    They take ``RUN_FLOPS``, if cuDNN counts their values; at least they are a plane of output.
    """
    conv = layer.conv if isinstance(layer, PooledConv) else layer
    item = max(conv.in_features, conv.out_features) * shape.size.volume
    out = shape.size - conv.kernel + 1
    images = RUN_FLOPS / (2.0 * out.volume * conv.parameters)
    if images >= 1:
        return shape._replace(n=max(1, min(shape.n, MOST_ELEMENTS // item, int(images))))
    least = layer.pool.window.z if isinstance(layer, PooledConv) else 1
    return shape._replace(n=1, z=conv.kernel.z - 1 + max(least, int(images * out.z)))
