"""Every primitive for GPUs on one layer, beside PyTorch's, on the same GPU in one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.accuracy import sampled_error
from bench.gpu_ceilings import GpuCeilings
from bench.gpu_timing import measured, seconds_of
from bench.gpu_torch import NAMES, PROPOSALS, TorchLayer, give_back_memory, part_at_once, peak_bytes
from bench.layers import Layer, convolution_of
from bench.on_device import OnDevice
from bench.record import Row
from bench.rounds import Effort, Result
from bench.torch_settings import has_torch
from planner.cost_model import BUILT_IN
from znni.core.errors import InvalidInput, ZnniError
from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.device_arena import DeviceArena
from znni.network.network import Network, PooledConv
from znni.network.weights import ConvWeights, random_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Primitive

MIB = 2**20


def compare_gpu_layer(
    primitives: list[Primitive],
    layer: Layer,
    shape: Shape5,
    effort: Effort,
    ceilings: GpuCeilings,
    peers: tuple[str, ...] = NAMES,
    proposals: int = PROPOSALS,
) -> Iterator[Row]:
    """A row for each primitive that does such a layer, and for each way PyTorch can, as they come.

    One after the other has the GPU to itself. What failed, or would take longer than the budget of
    a contestant, has a row that says so. PyTorch takes a part at a time, again and again until it
    has computed as many voxels as ours or the budget is used. Where the layer is pooled, voxels
    are those of the convolution all the same.

    Raises:
        InvalidInput: none of the primitives does such a layer.
    """
    conv = convolution_of(layer)
    weights = random_weights(Network.chain("layer", conv.in_features, (conv,)), 0)[conv.name]
    able = [p for p in primitives if p.out_shape(layer, shape) is not None]
    if not able:
        raise InvalidInput(f"no primitive asked for does {layer.name} on {shape}; choose others")
    x = cupy().random.default_rng(0).standard_normal(shape, dtype="float32")
    about = {
        "device": ceilings.device,
        "kernel": str(conv.kernel),
        "pool": str(layer.pool.window) if isinstance(layer, PooledConv) else None,
        "maps": f"{conv.in_features}->{conv.out_features}",
        "input": str(shape),
    }
    for primitive in able:
        try:
            row = _ours(primitive, layer, weights, x, effort, ceilings)
        except (ZnniError, MemoryError, RuntimeError) as error:
            row = {"skipped": _first_line(error)}
        yield about | {"name": primitive.name, "accuracy": primitive.accuracy} | row
    cupy().get_default_memory_pool().free_all_blocks()
    part_shape = part_at_once(layer, shape)
    part = x[: part_shape.n, :, : part_shape.z]
    for name in peers if has_torch() else ():
        try:
            # Nothing here refers to it once it is measured: its memory is given back.
            row = _torch(
                TorchLayer(name, layer, weights, part, proposals),
                layer, weights, part, _voxels(layer, shape), effort,
            )  # fmt: skip
        except RuntimeError as error:
            row = {"skipped": _first_line(error)}
        give_back_memory()
        yield about | {"name": name} | row


def nanoseconds(row: Row) -> float:
    """For a voxel; infinite where nothing was measured."""
    return float(row.get("ns_per_voxel", float("inf")))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _ours(
    primitive: Primitive,
    layer: Layer,
    weights: ConvWeights,
    x: object,
    effort: Effort,
    ceilings: GpuCeilings,
) -> Row:
    device_input: object = x
    shape = Shape5(*x.shape)  # type: ignore[attr-defined]
    cost = primitive.cost(layer, shape)
    likely = BUILT_IN.estimate(primitive, layer, shape, cost).seconds
    if likely > effort.budget:
        return {"skipped": f"would take {likely:,.0f} s or so"}
    run = primitive.build(layer, shape, weights)
    arena = DeviceArena(cost.memory.working - shape.nbytes)
    with arena.in_use():
        work = partial(run, device_input)  # type: ignore[arg-type]
        result = measured(work, effort.repeats, effort.budget)
        y = work()
        error = sampled_error(OnDevice(x), OnDevice(y), layer, weights)
        del y
    return {
        **_speed(result, layer, shape),
        **_roofline(result, cost, layer, shape, ceilings),
        "error": error,
        "peak_mib": (arena.peak + shape.nbytes) / MIB,
        "declared_mib": cost.memory.working / MIB,
        "resident_mib": cost.memory.resident / MIB,
    }


def _torch(
    work: TorchLayer,
    layer: Layer,
    weights: ConvWeights,
    part: object,
    voxels: int,
    effort: Effort,
) -> Row:
    shape = Shape5(*part.shape)  # type: ignore[attr-defined]
    work()  # autotunes
    affordable = effort.budget / effort.repeats / seconds_of(work)
    times = max(1, min(voxels // _voxels(layer, shape), int(affordable)))

    def again() -> None:
        for _ in range(times):
            work()

    result = measured(again, effort.repeats, effort.budget)
    return {
        **_speed(result, layer, shape._replace(n=times * shape.n)),
        "error": sampled_error(OnDevice(part), work.output(), layer, weights),
        "peak_mib": peak_bytes(work) / MIB,
        "measured": f"{times} times {shape}",
    }


def _speed(result: Result, layer: Layer, shape: Shape5) -> Row:
    conv = convolution_of(layer)
    voxels = _voxels(layer, shape)
    seconds = result.timing.median
    flops = 2.0 * voxels * conv.in_features * conv.out_features * conv.kernel.volume
    return {
        **result.record(),
        "ns_per_voxel": seconds * 1e9 / voxels,
        "voxels": voxels,
        "tflops_direct": flops / seconds / 1e12,
    }


def _roofline(
    result: Result, cost: Cost, layer: Layer, shape: Shape5, ceilings: GpuCeilings
) -> Row:
    """The floor under the operations and bytes that a primitive declares."""
    voxels = _voxels(layer, shape)
    floor = ceilings.floor(cost)
    traffic = cost.bytes_moved / ceilings.copy_bandwidth
    return {
        "declared_flops": cost.flops,
        "declared_bytes": cost.bytes_moved,
        "traffic_ns": traffic * 1e9 / voxels,
        "floor_ns": floor.seconds * 1e9 / voxels,
        "bound": floor.bound,
        "achieved": floor.share(result.timing.median),
    }


def _voxels(layer: Layer, shape: Shape5) -> int:
    return shape.n * (shape.size - convolution_of(layer).kernel + 1).volume
