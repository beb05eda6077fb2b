"""PyTorch's convolution of one layer on a GPU: cuDNN's, autotuned, in each class of accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

from bench.on_device import OnDevice
from znni.core.shapes import Shape5
from znni.network.network import Conv, PooledConv
from znni.network.weights import ConvWeights

TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
LAYOUTS = {"": "contiguous_format", "_channels_last": "channels_last_3d"}
NAMES = tuple(f"torch_{kind}{layout}" for kind, layout in product(TYPES, LAYOUTS))

# Elements of a tensor that cuDNN counts; what has more goes to slower code.
MOST_ELEMENTS = 2**31 - 1


# Of cuDNN's engines autotuning tries so many, in the order in which cuDNN proposes them. Of those
# that come late some take seconds where the best takes milliseconds.
PROPOSALS = 10

# Operations of a run of PyTorch's, about: enough to keep a GPU busy, and few enough that what
# autotuning tries, some of it a hundred times slower than the best, ends.
RUN_FLOPS = 2e12


def part_at_once(layer: Conv | PooledConv, shape: Shape5) -> Shape5:
    """What PyTorch computes in a run: some images of a batch, or some planes of one.

    They take ``RUN_FLOPS``, as far as cuDNN counts their values; at least a plane of output.
    """
    conv = layer.conv if isinstance(layer, PooledConv) else layer
    item = max(conv.in_features, conv.out_features) * shape.size.volume
    out = shape.size - conv.kernel + 1
    images = RUN_FLOPS / (2.0 * out.volume * conv.parameters)
    if images >= 1:
        return shape._replace(n=max(1, min(shape.n, MOST_ELEMENTS // item, int(images))))
    least = layer.pool.window.z if isinstance(layer, PooledConv) else 1
    return shape._replace(n=1, z=conv.kernel.z - 1 + max(least, int(images * out.z)))


class TorchLayer:
    """A convolution with bias and ReLU, and its pooling if it has one.

    Args:
        name: of ``NAMES``.
        layer: the operation; its activation must be ReLU.
        weights: its parameters.
        x: input (n, f, z, y, x), a ``cupy.ndarray``; what converts it to a type and layout is done
            here, and not timed.
        proposals: of cuDNN, among which it is autotuned.
    """

    def __init__(
        self,
        name: str,
        layer: Conv | PooledConv,
        weights: ConvWeights,
        x: Any,
        proposals: int = PROPOSALS,
    ) -> None:
        import torch

        _, kind, *layout = name.split("_", 2)
        dtype = getattr(torch, TYPES[kind])
        self._settings = partial(settings, tf32=kind == "tf32", proposals=proposals)
        memory_format = getattr(torch, LAYOUTS["_" + layout[0] if layout else ""])

        def tensor(array: Any) -> Any:
            made = torch.empty(array.shape, dtype=dtype, device="cuda", memory_format=memory_format)
            return made.copy_(torch.as_tensor(array))

        self._window = tuple(layer.pool.window) if isinstance(layer, PooledConv) else None
        self._arguments = tensor(x), tensor(weights.weight)
        self._bias = torch.from_numpy(weights.bias).to("cuda", dtype)

    def __call__(self) -> Any:
        """The output, a tensor on the GPU; autotuned the first time."""
        import torch

        with torch.inference_mode(), self._settings():
            y = torch.relu_(torch.nn.functional.conv3d(*self._arguments, self._bias))
            return y if self._window is None else torch.nn.functional.max_pool3d(y, self._window)

    def output(self) -> OnDevice:
        """The output, of which parts are taken to the host."""
        return OnDevice(self())


@contextmanager
def settings(*, tf32: bool, proposals: int = PROPOSALS) -> Iterator[None]:
    """cuDNN, autotuned among so many engines, within a ``with`` block."""
    import torch

    with torch.backends.cudnn.flags(
        enabled=True, benchmark=True, benchmark_limit=proposals, allow_tf32=tf32
    ):
        yield


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that PyTorch holds during some work, inputs and weights counted."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def give_back_memory() -> None:
    """Return what PyTorch keeps for later."""
    import torch

    torch.cuda.empty_cache()
