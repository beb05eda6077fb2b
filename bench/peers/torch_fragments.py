"""The peer for whole networks: max-pooling fragments in PyTorch, at the settings that suit it.

It goes depth first over the first pool's fragments, so that its working set stays small. That is
the fastest arrangement of PyTorch's own operators that we found. The output of the layers before
that pool is stored if it fits. Otherwise each fragment computes its own, a few planes at a time, so
that larger patches fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.accuracy import OnDevice, corners
from bench.peers.torch_network import Piece, TorchNetwork, layer_flops
from bench.peers.torch_settings import WHOLE
from znni.core.shapes import Shape5, Vec3, offsets
from znni.engine.backends.host.recombine import recombine
from znni.network.layers import Conv, Pool, SlidingLayer
from znni.network.network import Network
from znni.network.weights import Float32

# A pool's fragments, and joined: both at once.
COPIES_OF_FRAGMENTS = 2

# Planes of a fragment of the first pool that are computed at a time if its input is not stored.
SLAB_PLANES = 8


class TorchFragments(TorchNetwork):
    """Dense output by fragments of every pool.

    Args:
        network: what to compute.
        dtype: of all arithmetic, by PyTorch's name.
        layout: of all arrays in memory, by PyTorch's name.
        threads: PyTorch's.
        ram: bytes that a patch's arrays may take.
        device: where it computes, by PyTorch's name.
    """

    def __init__(
        self,
        network: Network,
        dtype: str,
        layout: str,
        threads: int,
        ram: int,
        device: str = "cpu",
    ) -> None:
        super().__init__(network, dtype, layout, threads, device)
        self._ram = ram
        pools = [layer for layer in network.sliding_layers if isinstance(layer, Pool)]
        first_pool = (
            network.sliding_layers.index(pools[0]) if pools else len(network.sliding_layers)
        )
        self.first_pool = pools[0] if pools else Pool("none", Vec3(1, 1, 1))
        self.window = self.first_pool.window
        self.head = network.sliding_layers[:first_pool]
        self.tail = network.sliding_layers[first_pool + 1 :]
        self.one_fragment = f"head and 1 of {self.window.volume} fragments"

    def dense(self, image: Any) -> Any:
        """Return the dense output, a tensor (1, f', Z, Y, X) in float32, of one (1, f, z, y, x)."""
        dense = self._empty_output(image)
        fragment_at = self._fragments(image)
        for offset in offsets(self.window):
            self._finish(dense, fragment_at(offset), offset)
        return dense

    def timed(self, x: Float32) -> float:
        """Time a patch, whole or scaled from its first fragment."""
        return super().timed(x) if self.measured == WHOLE else self.scaled_from_one_fragment(x)

    def scaled_from_one_fragment(self, x: Float32) -> float:
        """Time the layers before the first pool and one of its fragments, scaled to a patch.

        All fragments have the same shape and cost, but the first one is the first to touch its
        memory. So its pooling is done once before.
        """
        image = self.tensor(x[np.newaxis])
        first = Vec3(0, 0, 0)
        with torch.inference_mode():
            dense = self._empty_output(image)
            start = self.now()
            fragment_at = self._fragments(image)
            head = self.now() - start
            fragment_at(first)
            start = self.now()
            self._finish(dense, fragment_at(first), first)
            fragment = self.now() - start
        of_one = corners(self.network, OnDevice(dense[0]))
        self._last = of_one._replace(last=None)  # of another fragment
        return head + self.window.volume * fragment

    def ways(self, patch: Vec3, estimate: float) -> list[tuple[str, float]]:
        """Return two ways: whole, or the head and a single fragment."""
        pieces = self.pieces(patch)
        single = sum(piece.flops for piece in pieces)
        whole = sum(piece.flops * piece.runs for piece in pieces)
        return [*super().ways(patch, estimate), (self.one_fragment, estimate * single / whole)]

    def pieces(self, patch: Vec3) -> list[Piece]:
        """Return the layers: those from the first pool on run for each of its fragments.

        The layers before it run once, or for each fragment if the pool's input does not fit.
        """
        return self._pieces(patch, stored=self._stored(patch))

    def _stored(self, patch: Vec3) -> bool:
        """Return True if the first pool's input fits beside all else."""
        most = max(piece.alive for piece in self._pieces(patch, stored=True))
        return most * int(self.dtype.itemsize) <= self._ram

    def _pieces(self, patch: Vec3, *, stored: bool) -> list[Piece]:
        fragments = self.window.volume
        shape = Shape5.of(1, self.network.in_features, patch + self.network.field_of_view - 1)
        made = []
        for layer in self.head:
            made.append(self._piece(layer, shape, 1 if stored else fragments, 0))
            shape = _out_shape(layer, shape)
        size = shape.size // self.window
        fragment = Shape5.of(1, shape.f, size)
        made.append(
            Piece(
                layer=self.first_pool,
                shape=shape,
                planes=size.z,
                stride=self.window.z,
                reach=self.window.z - 1,
                flops=layer_flops(self.first_pool, shape, size),
                runs=fragments,
                values=shape.elements,
                alive=shape.elements + fragment.elements,
                run=partial(_fragment, window=self.window, offset=Vec3(0, 0, 0)),
            )
        )
        if not stored:
            share = min(1.0, SLAB_PLANES / size.z)
            made = [
                replace(piece, alive=2 * fragment.elements + round(share * piece.alive))
                for piece in made
            ]
        held = shape.elements if stored else 0
        shape = fragment
        for layer in self.tail:
            made.append(self._piece(layer, shape, fragments, held))
            shape = _out_shape(layer, shape)
        return made

    def _piece(self, layer: SlidingLayer, shape: Shape5, runs: int, held: int) -> Piece:
        out = _out_shape(layer, shape)
        copies = 1 if isinstance(layer, Conv) else COPIES_OF_FRAGMENTS
        stride = 1 if isinstance(layer, Conv) else layer.window.z
        return Piece(
            layer=layer,
            shape=shape,
            planes=out.z,
            stride=stride,
            reach=layer.kernel.z - 1 if isinstance(layer, Conv) else stride - 1,
            flops=layer_flops(layer, shape, out.size),
            runs=runs,
            values=max(shape.elements, out.elements),
            alive=held + shape.elements + copies * out.elements,
            run=partial(self._layer, layer),
        )

    def _empty_output(self, image: Any) -> Any:
        size = Vec3(*image.shape[2:]) - self.network.field_of_view + 1
        return torch.empty((1, self.network.out_features, *size), device=self.device)

    def _fragments(self, image: Any) -> Callable[[Vec3], Any]:
        """Return a function for the first pool's fragment at an offset.

        It takes the fragment from the pool's stored input, if that fits.
        """
        if self._stored(Vec3(*image.shape[2:]) - self.network.field_of_view + 1):
            return partial(_fragment, self._layers(self.head, image), self.window)
        return partial(self._fragment_in_slabs, image)

    def _fragment_in_slabs(self, image: Any, offset: Vec3) -> Any:
        step = self.window.z
        reach = sum(layer.kernel.z - 1 for layer in self.head if isinstance(layer, Conv))
        planes = (image.shape[2] - reach) // step
        slabs = []
        for first in range(0, planes, SLAB_PLANES):
            start = offset.z + first * step
            stop = offset.z + min(first + SLAB_PLANES, planes) * step
            y = self._layers(self.head, image[:, :, start : stop + reach])
            slabs.append(_fragment(y, self.window, offset._replace(z=0)))
        return torch.cat(slabs, dim=2)

    def _finish(self, dense: Any, fragment: Any, offset: Vec3) -> None:
        """Take one of the first pool's fragments to the end, and put it in its place."""
        at, stride = self._positions(offset)
        recombine(self._layers(self.tail, fragment), at, stride, dense[0])

    def _layers(self, layers: tuple[SlidingLayer, ...], y: Any) -> Any:
        for layer in layers:
            y = self._layer(layer, y)
        return y

    def _layer(self, layer: SlidingLayer, y: Any) -> Any:
        if isinstance(layer, Conv):
            return self.convolve(layer, y)
        return torch.cat([_fragment(y, layer.window, offset) for offset in offsets(layer.window)])

    def _positions(self, offset: Vec3) -> tuple[tuple[Vec3, ...], Vec3]:
        """Return the first dense positions of the tail's output, and the stride of its voxels."""
        at: tuple[Vec3, ...] = (offset,)
        stride = self.window
        for layer in self.tail:
            if isinstance(layer, Pool):
                at = tuple(first + stride * o for o in offsets(layer.window) for first in at)
                stride *= layer.window
        return at, stride


def _fragment(x: Any, window: Vec3, offset: Vec3) -> Any:
    stop = offset + Vec3(*x.shape[2:]) // window * window
    crop = x[:, :, offset.z : stop.z, offset.y : stop.y, offset.x : stop.x]
    return functional.max_pool3d(crop, tuple(window))


def _out_shape(layer: SlidingLayer, shape: Shape5) -> Shape5:
    if isinstance(layer, Conv):
        return Shape5.of(shape.n, layer.out_features, shape.size - layer.kernel + 1)
    return Shape5.of(shape.n * layer.window.volume, shape.f, shape.size // layer.window)
