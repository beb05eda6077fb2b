"""PyTorch on one whole window of a network on a GPU, from a tensor there to another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from bench.peers.torch_graph import TorchGraph
from bench.peers.torch_settings import LAYOUTS, PROPOSALS, TYPES, autotuned
from znni.network.network import Network
from znni.network.weights import Float32, Weights


class WindowOnGpu:
    """A network in PyTorch, ready to compute one window again and again.

    Args:
        network: the network.
        weights: its weights.
        x: the window (f, z, y, x), which is copied to the device.
        kind: one of ``TYPES``.
        layout: of all arrays in memory, by PyTorch's name.
        compiled: whether ``torch.compile`` fuses the layers.
        device: the device, by PyTorch's name.
    """

    def __init__(
        self,
        network: Network,
        weights: Weights,
        x: Float32,
        kind: str,
        layout: str,
        *,
        compiled: bool,
        device: str = "cuda",
    ) -> None:
        self._tf32 = kind == "tf32"
        dtype, memory_format = getattr(torch, TYPES[kind]), getattr(torch, layout)
        module: Any = TorchGraph(network, weights, dtype).eval()
        module.to(device).to(memory_format=memory_format)
        self._module = torch.compile(module, dynamic=False) if compiled else module
        self._x = torch.from_numpy(x)[None].to(device, dtype).to(memory_format=memory_format)

    def run(self) -> Any:
        """Return the output as a tensor; on a GPU it may not be finished yet."""
        with torch.inference_mode(), autotuned(tf32=self._tf32, proposals=PROPOSALS):
            return self._module(self._x)

    def output(self) -> Float32:
        """Return the output (f', z', y', x')."""
        found: Float32 = self.run()[0].float().contiguous().cpu().numpy()
        return found


def peers_on_gpu(
    network: Network, weights: Weights, x: Float32, device: str = "cuda"
) -> dict[str, Callable[[], WindowOnGpu]]:
    """Return functions that make PyTorch's ways to compute a window ready, by name."""

    def later(kind: str, layout: str, compiled: bool) -> Callable[[], WindowOnGpu]:
        return lambda: WindowOnGpu(
            network, weights, x, kind, layout, compiled=compiled, device=device
        )

    return {
        f"torch{'-compiled' * compiled} {kind} {layout}": later(kind, layout, compiled)
        for kind, layout, compiled in product(TYPES, LAYOUTS, (False, True))
    }
