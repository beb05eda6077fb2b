"""Declared memory is a promise: never exceeded, and never much more than is really used."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from statistics import median
from typing import Any
from unittest import mock

import psutil
import pytest
from devices import to_gpu
from layers import CONVOLUTION, POOLED_CONVOLUTION, POOLING, Case, case_for, primitives_for

from znni.core.shapes import Shape5, Vec3
from znni.machine import device_arena
from znni.machine.arena import SPARE, Arena, output_into
from znni.machine.arrays import ALIGNMENT, Peak, peak_memory
from znni.machine.cuda import cupy
from znni.machine.device_arena import DeviceArena
from znni.network.layers import (
    NO_PADDING,
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    GlobalPool,
    Maximum,
    Multiply,
    Normalize,
    Operation,
    PadLayer,
    Pool,
    PooledConv,
    Upsample,
    VoxelNorm,
)
from znni.plans.cost import Memory
from znni.plans.device_partition import DevicePart
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.segments import Segment, Step

# What the allocator, the interpreter and huge pages (2 MiB each) may add or hide, once.
SLACK = 3 * 2**20

# Extents and map numbers are different primes, so that no term of a formula hides behind another.
CONVOLUTIONS = [
    (Conv("hidden", 13, 17, Vec3(3, 2, 5), "relu"), Shape5(3, 13, 37, 43, 53)),
    (Conv("first", 1, 19, Vec3(2, 3, 2), "softmax"), Shape5(1, 1, 71, 79, 83)),
    (Conv("last", 29, 3, Vec3(5, 3, 2), "relu"), Shape5(2, 29, 31, 43, 47)),
    (Conv("many maps", 97, 89, Vec3(3, 5, 5), "relu"), Shape5(1, 97, 13, 17, 31)),
]
POOLINGS = [
    (Pool("pool", Vec3(2, 3, 2)), Shape5(3, 17, 59, 62, 83)),
    (Pool("plane", Vec3(1, 2, 3)), Shape5(1, 13, 61, 97, 101)),
]
POOLED = [
    (PooledConv(conv, pool), Shape5(1, conv.in_features, 113, 127, 131))
    for conv in (
        Conv("few", 1, 19, Vec3(2, 3, 5), "relu"),
        Conv("some", 3, 37, Vec3(5, 7, 3), "elu"),
    )
    for pool in (Pool("cube", Vec3(2, 2, 2)), Pool("plane", Vec3(1, 3, 2)))
]
TWO = Vec3(2, 2, 2)
LOCAL: list[tuple[Operation, Shape5]] = [
    (Conv("strided", 13, 17, Vec3(3, 2, 5), "relu", Vec3(2, 1, 3)), Shape5(3, 13, 37, 43, 53)),
    (Conv("dilated", 5, 19, Vec3(3, 3, 2), "softmax", dilation=TWO), Shape5(1, 5, 41, 53, 61)),
    (Conv("grouped", 34, 51, Vec3(3, 2, 3), "relu", groups=17), Shape5(1, 34, 29, 37, 53)),
    (Conv("depthwise", 17, 17, Vec3(3, 2, 3), "relu", groups=17), Shape5(2, 17, 41, 53, 61)),
    (
        ConvTranspose("spread_maps", 17, 17, Vec3(3, 3, 3), "relu", TWO, groups=17),
        Shape5(2, 17, 17, 23, 29),
    ),
    (ConvTranspose("transposed", 23, 11, TWO, "relu", TWO), Shape5(2, 23, 17, 23, 29)),
    (ConvTranspose("wide", 97, 37, Vec3(3, 5, 3), "relu", TWO), Shape5(1, 97, 11, 23, 29)),
    (Affine("affine", 17, "softmax"), Shape5(1, 17, 59, 62, 83)),
    (VoxelNorm("layer_norm", 17, 1, activation="gelu"), Shape5(1, 17, 59, 62, 83)),
    (Normalize("response_norm", 17, 1, by="response"), Shape5(1, 17, 59, 62, 83)),
    (Concat("concat"), Shape5(2, 17, 59, 62, 83)),
    (Add("add", "relu"), Shape5(1, 22, 59, 62, 83)),
    (Multiply("multiply", "elu"), Shape5(3, 14, 59, 62, 83)),
    (Multiply("spread", "sigmoid", spreads=True), Shape5(1, 22, 59, 62, 83)),
    (Maximum("maximum"), Shape5(1, 22, 59, 62, 83)),
    (GlobalPool("global_average"), Shape5(2, 17, 59, 62, 83)),
    (Upsample("nearest", Vec3(2, 1, 3)), Shape5(2, 7, 29, 41, 53)),
    (Upsample("trilinear", Vec3(1, 3, 2), "trilinear"), Shape5(2, 7, 29, 41, 53)),
    (PadLayer("edges", NO_PADDING, "edge"), Shape5(2, 7, 29, 41, 53)),
    (Pool("average", Vec3(2, 3, 2), "average"), Shape5(3, 17, 59, 62, 83)),
    (Pool("overlapping", Vec3(3, 2, 3), step=Vec3(2, 1, 2)), Shape5(1, 13, 61, 97, 101)),
]


def examples() -> Iterator[Any]:
    """Yield each primitive with each layer of its kind, as test parameters."""
    kinds: list[tuple[tuple[Operation, Shape5], list[tuple[Operation, Shape5]]]] = [
        (CONVOLUTION, CONVOLUTIONS),
        (POOLING, POOLINGS),
        (POOLED_CONVOLUTION, POOLED),
        *((example, [example]) for example in LOCAL),
    ]
    for kind, layers in kinds:
        for (layer, shape), tested in product(layers, primitives_for(*kind)):
            name = f"{tested.id}-{layer.name}"
            yield pytest.param(*tested.values, layer, shape, id=name, marks=tested.marks)


every_layer = pytest.mark.parametrize(("primitive", "layer", "shape"), list(examples()))


@cache
def memory_trim() -> Any:
    """Return the C library's function that returns freed memory, or None if it has none."""
    return getattr(ctypes.CDLL(ctypes.util.find_library("c")), "malloc_trim", None)


def give_back_freed_memory() -> None:
    """Return freed memory to the system, so that using it again counts."""
    gc.collect()
    trim = memory_trim()
    if trim is not None:
        trim(0)


def anonymous_memory() -> int:
    """Resident bytes that are of no file: pages of files come and go as the system likes."""
    return int(psutil.Process().memory_info().rss) - file_memory()


def file_memory() -> int:
    """Resident bytes of files, such as code; 0 where the system does not tell."""
    return int(getattr(psutil.Process().memory_info(), "shared", 0))


@contextmanager
def anonymous_peak() -> Iterator[Peak]:
    """The peak within a ``with`` block, but for pages of files that came back in it."""
    before = file_memory()
    with peak_memory() as peak:
        yield peak
    peak.highest -= max(file_memory() - before, 0)


def measure(primitive: Primitive, case: Case) -> Memory:
    """What building and running really take."""
    give_back_freed_memory()
    before = anonymous_memory()
    run = primitive.build(case.layer, case.shape, case.weights)
    give_back_freed_memory()
    resident = anonymous_memory() - before
    with anonymous_peak() as peak:
        y = run(*case.inputs)
    assert y.shape == primitive.out_shape(case.layer, case.shape)
    with output_into(y), anonymous_peak() as beside:
        run(*case.inputs)
    return Memory(resident, peak.added + case.x.nbytes, beside.added)


def measure_on_gpu(primitive: Primitive, case: Case) -> Memory:
    """What building and running really take of the GPU."""
    pool = cupy().get_default_memory_pool()
    before = pool.used_bytes()
    run = primitive.build(case.layer, case.shape, case.weights)
    resident = pool.used_bytes() - before
    inputs = [to_gpu(x) for x in case.inputs]
    given = case.x.nbytes  # a join declares all of it, also if its second input is smaller
    declared = primitive.cost(case.layer, case.shape).memory
    arena, beside = DeviceArena(declared.working - given), DeviceArena(declared.workspace)
    pooled = pool.total_bytes()
    with arena.in_use():
        y = run(*inputs)
    with output_into(y), beside.in_use():
        run(*inputs)
    assert pool.total_bytes() == pooled, "a run takes memory from the arena alone"
    return Memory(resident, arena.peak + given, beside.peak)


def measure_on_both(primitive: Primitive, case: Case) -> Memory:
    """What building and running really take of the GPU where a primitive of the host uses it.

    What CUDA takes of the host comes and goes, and would hide what the primitive does.
    """
    pool = cupy().get_default_memory_pool()
    before = pool.used_bytes()
    run = primitive.build(case.layer, case.shape, case.weights)
    resident = pool.used_bytes() - before
    declared = primitive.cost(case.layer, case.shape).memory
    arena = DeviceArena(declared.gpu_working)
    with arena.in_use():
        run(*case.inputs)
    return replace(declared, gpu_resident=resident, gpu_working=arena.peak)


MEASURES = {"cpu": measure, "gpu": measure_on_gpu}


def both(declared: Memory, measured: Memory) -> dict[str, tuple[int, int]]:
    """Of each kind of memory, the bytes declared and measured."""
    pairs = zip(asdict(declared).items(), asdict(measured).values(), strict=True)
    return {kind: (promised, taken) for (kind, promised), taken in pairs}


def run_in_its_place(primitive: Primitive, case: Case) -> None:
    """Run in the place that a plan gives a call. It must find room for all that it takes."""
    out = primitive.out_shape(case.layer, case.shape)
    assert out is not None
    cost = primitive.cost(case.layer, case.shape)
    step = Step(case.layer, primitive.name, case.shape, out, cost, 1.0, 0.0, ("",))
    part = DevicePart((Segment(primitive.device.kind, 1, (step,)),), case.shape)
    run = primitive.build(case.layer, case.shape, case.weights)
    if primitive.device.kind == "gpu":
        placed = part.placement(device_arena.ALIGNMENT, device_arena.SPARE)
        on_gpu = DeviceArena(placed.size, spare=0)
        into = on_gpu.array_at(placed.starts[step.gives], out)
        with on_gpu.step(placed.room[0]), output_into(into):
            run(*map(to_gpu, case.inputs))
        return
    placed = part.placement(ALIGNMENT, SPARE)
    arena, start = Arena(placed.size, spare=0), placed.starts[step.gives]
    (use,) = part.array_uses().uses
    with (
        mock.patch.object(Arena, "_take_outside", side_effect=AssertionError("no room")),
        arena.step(start if use.late else None, placed.room[0]),
        output_into(None if use.late else arena.array_at(start, out)),
    ):
        run(*case.inputs)


@pytest.mark.slow
@every_layer
def test_a_layer_fits_its_place_and_keeps_to_its_memory(
    primitive: Primitive, layer: Operation, shape: Shape5
) -> None:
    case = case_for(primitive, layer, shape)
    uses_gpu = isinstance(primitive, UsesGpu)
    # The first run compiles, starts threads, and lets libraries make their buffers.
    if uses_gpu:  # it takes the GPU's arena, too
        case.run(primitive)
    else:
        run_in_its_place(primitive, case)
    measured_by = measure_on_both if uses_gpu else MEASURES[primitive.device.kind]
    declared = primitive.cost(layer, case.shape).memory
    found = both(declared, measured_by(primitive, case))
    if not as_promised(found):
        # Once may be disturbed: by workers that come late, whose scratch is never touched, or by
        # pages that something else touches meanwhile. The median of three is not.
        again = [both(declared, measured_by(primitive, case)) for _ in range(2)]
        found = {
            kind: (promised, int(median([taken, *(other[kind][1] for other in again)])))
            for kind, (promised, taken) in found.items()
        }
    assert as_promised(found), f"bytes declared and measured: {found}"


def as_promised(found: dict[str, tuple[int, int]]) -> bool:
    """No more is taken than was declared, and no much less."""
    return all(
        taken <= promised + SLACK and promised <= 1.15 * taken + SLACK
        for promised, taken in found.values()
    )
