"""Primitives for tests of planner and engine: the reference's numbers at a chosen cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench import reference
from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.machine import Device, Machine
from znni.network.layers import Conv, Operation, Pool, PooledConv
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import (
    Catalogue,
    LazyCatalogue,
    Primitive,
    Run,
    convolved,
    convolved_and_pooled,
    devices_of,
    fragmented,
    pooled,
)


def machine(memory: int = 2**34, threads: int = 1) -> Machine:
    return Machine(Device("cpu", "fake", memory, threads, flops=1e9, bandwidth=1e12))


def two_cores(memory: int = 2**34) -> Machine:
    """Return a machine as fast as two cores with AVX-512, whatever runs the tests."""
    return Machine(Device("cpu", "two cores", memory, 2, flops=320e9, bandwidth=22e9))


@dataclass(frozen=True)
class Fake:
    """Primitive that runs the reference and declares the costs that it is given."""

    name: str
    shapes: Callable[[Operation, Shape5], Shape5 | None]
    flops: float = 1.0
    resident: int = 0
    workspace: int = 0
    device: Device = machine().host
    accuracy: float = 1e-6
    version: int = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        return self.shapes(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        out = self.shapes(layer, shape)
        assert out is not None
        memory = Memory.beside(shape.nbytes + out.nbytes, self.workspace, self.resident)
        return Cost(self.flops * out.elements, 0.0, memory, 1.0)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        out = self.shapes(layer, shape)
        assert out is not None

        def run(x: Float32) -> Float32:
            assert x.shape == shape
            y = new_output(out)
            workspace((self.workspace,), np.uint8).fill(1)
            y[...] = self._reference(x, layer, weights)
            return y

        return run

    def _reference(self, x: Float32, layer: Operation, weights: ConvWeights | None):  # type: ignore[no-untyped-def]
        if isinstance(layer, PooledConv):
            assert weights is not None
            return reference.pooling(reference.convolution(x, layer.conv, weights), layer.pool)
        if isinstance(layer, Conv):
            assert weights is not None
            return reference.convolution(x, layer, weights)
        assert isinstance(layer, Pool)
        if self.shapes is fragmented:
            return reference.pooling_fragments(x, layer)
        return reference.pooling(x, layer)


@dataclass(frozen=True)
class Watched(Fake):
    """Primitive that calls a function before each run."""

    before: Callable[[Operation], object] = lambda _layer: None

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        run = super().build(layer, shape, weights)

        def watched(x: Float32) -> Float32:
            self.before(layer)
            return run(x)

        return watched


# This primitive convolves and pools: one of its output voxels takes eight of the convolution's.
FUSED = Fake("fused", convolved_and_pooled, flops=800.0)


def fake_catalogue(*more: Primitive) -> dict[str, Primitive]:
    primitives: tuple[Primitive, ...] = (
        Fake("conv", convolved, flops=100.0),
        Fake("pool", pooled),
        Fake("fragments", fragmented),
        *more,
    )
    return {primitive.name: primitive for primitive in primitives}


class Lazy(LazyCatalogue):
    """A catalogue that is told apart by a text."""

    def __init__(self, found: Catalogue, cache_key: str) -> None:
        self._found, self.cache_key, self.devices = found, cache_key, devices_of(found)

    @property
    def all_found(self) -> Catalogue:
        return self._found

    def __getitem__(self, name: str) -> Primitive:
        return self._found[name]


def gpu(memory: int = 2**34) -> Device:
    return Device("gpu", "fake GPU", memory, 1, flops=1e9, bandwidth=1e12, capability=90)


GPU = gpu()


@dataclass(frozen=True)
class FakeOnGpu(Fake):
    """GPU primitive that runs the reference on the host."""

    device: Device = GPU

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        out = self.shapes(layer, shape)
        assert out is not None

        def run(x: Any) -> Any:
            assert x.shape == shape
            y = new_device_output(out)
            device_workspace((self.workspace,), np.uint8).fill(1)
            y.set(np.ascontiguousarray(self._reference(x.get(), layer, weights), np.float32))
            return y

        return run


@dataclass(frozen=True)
class FakeUsingGpu(Fake):
    """Primitive of the host that declares bytes of a GPU, too."""

    gpu_resident: int = 0
    gpu_working: int = 1
    gpu: Device = GPU
    base: Primitive = FakeOnGpu("gpu_conv", convolved, flops=10.0)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        cost = super().cost(layer, shape)
        memory = replace(cost.memory, gpu_resident=self.gpu_resident, gpu_working=self.gpu_working)
        return replace(cost, memory=memory, seconds=cost.flops / self.device.flops)


def fake_gpu_catalogue(**conv: int) -> dict[str, Primitive]:
    """Return primitives of a GPU; the arguments are fields of the convolution."""
    primitives = (
        FakeOnGpu("gpu_conv", convolved, flops=10.0, **conv),
        FakeOnGpu("gpu_pool", pooled),
        FakeOnGpu("gpu_fragments", fragmented),
    )
    return {primitive.name: primitive for primitive in primitives}
