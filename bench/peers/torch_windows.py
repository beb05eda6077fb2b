"""PyTorch on whole windows of a network, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from bench.peers.torch_graph import TorchGraph
from bench.peers.torch_settings import LAYOUTS, PROPOSALS, TYPES, autotuned
from znni.network.network import Network
from znni.network.weights import Float32, Weights

RECOMPILED = 64  # a record has fewer extents and types of numbers


class TorchWindows:
    """A network in PyTorch that computes windows of one shape.

    Args:
        network: the network.
        weights: its weights.
        kind: one of ``TYPES``.
        layout: of all arrays in memory, by PyTorch's name.
        compiled: whether ``torch.compile`` fuses the layers.
        device: the device, by PyTorch's name.
    """

    def __init__(
        self,
        network: Network,
        weights: Weights,
        kind: str,
        layout: str,
        *,
        compiled: bool,
        device: str,
    ) -> None:
        self._tf32 = kind == "tf32"
        self._device = device
        self._dtype, self._layout = getattr(torch, TYPES[kind]), getattr(torch, layout)
        module: Any = TorchGraph(network, weights, self._dtype).eval()
        module.to(device).to(memory_format=self._layout)
        if compiled:  # each extent anew; beyond the limit, layers would be run one by one, silently
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            torch._dynamo.config.recompile_limit = RECOMPILED
            module = torch.compile(module, dynamic=False)
        self._module = module

    def taken(self, windows: Any) -> Any:
        """Return windows (n, f, z, y, x) as the network takes them: where, and in which type."""
        return windows.to(self._device, self._dtype).to(memory_format=self._layout)

    def __call__(self, taken: Any) -> Any:
        """Return the output as a tensor; on a GPU it may not be finished yet."""
        with torch.inference_mode(), autotuned(tf32=self._tf32, proposals=PROPOSALS):
            return self._module(taken)

    def output(self, x: Float32) -> Float32:
        """Return the output (f', z', y', x') of one window (f, z, y, x)."""
        found: Float32 = self(self.taken(torch.from_numpy(x)[None]))[0].float().cpu().numpy()
        return found.copy(order="C")


def torch_ways(
    network: Network, weights: Weights, kinds: tuple[str, ...] = tuple(TYPES), device: str = "cuda"
) -> dict[str, Callable[[], TorchWindows]]:
    """Return functions that make PyTorch's ways to compute windows ready, by name."""

    def later(kind: str, layout: str, compiled: bool) -> Callable[[], TorchWindows]:
        return lambda: TorchWindows(
            network, weights, kind, layout, compiled=compiled, device=device
        )

    return {
        f"torch{'-compiled' * compiled} {kind} {layout}": later(kind, layout, compiled)
        for kind, layout, compiled in product(kinds, LAYOUTS, (False, True))
    }
