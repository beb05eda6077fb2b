"""Every primitive of the catalogue on one convolution, beside PyTorch's.

On a CPU contestants take turns, and PyTorch has a process of its own. On a GPU they run one after
the other in this process, because each may need all of the GPU's memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Annotated, Any, TypeAlias

import typer

from bench import session
from bench.accuracy import OnDevice, normal, sampled_error
from bench.ceilings import AnyCeilings, Ceilings, GpuCeilings
from bench.patches import release_gpu_memory
from bench.peers.torch_layer import (
    CPU_NAMES,
    GPU_NAMES,
    TorchLayer,
    cpu_peers,
    part_at_once,
    same_class,
)
from bench.peers.torch_settings import PROPOSALS, free_torch_memory, gpu_peak_bytes, has_torch
from bench.record import Kind, Row
from bench.rounds import Effort, Result, Stopwatch, rounds_on_gpu, run_rounds, speedups, stopwatch
from bench.table import table
from planner.cost_model import BUILT_IN, CostModel, Estimate
from znni.calibration.choice import cost_model
from znni.core.errors import InvalidInput, ZnniError
from znni.core.processors import DeviceKind
from znni.core.shapes import Shape5, Vec3
from znni.core.text import in_units
from znni.machine.arena import Arena
from znni.machine.arrays import peak_memory
from znni.machine.cuda import cupy
from znni.machine.device_arena import DeviceArena
from znni.machine.machine import Machine
from znni.machine.timing import seconds_on_device
from znni.network.layers import Conv, Pool, PooledConv
from znni.network.network import Network
from znni.network.weights import ConvWeights, Float32, random_weights
from znni.plans.accuracy import class_of
from znni.plans.cost import Cost
from znni.plans.primitive import Primitive, on_device
from znni.primitives.catalogue import catalogue

Layer: TypeAlias = Conv | PooledConv

MIB = 2**20

# What is measured unless other values are given: batch, size and budget.
DEFAULTS: dict[DeviceKind, tuple[int, int, float]] = {"cpu": (1, 64, 60.0), "gpu": (64, 34, 3.0)}


def layers_command(
    kernel: session.Kernels,
    device: session.Device = "cpu",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Inputs times fragments; repeatable. Default: 1, on a GPU 64."),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Input voxels per axis; repeatable. Default: 64, on a GPU 34."),
    ] = None,
    features: session.Features = 80,
    out_features: session.OutFeatures = 80,
    maps: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Input and output maps alike; repeatable. Default: --features, --out-features.",
        ),
    ] = None,
    fastest: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Measure only so many primitives per accuracy class: the fastest ones by the "
            "built-in model. Default: all.",
        ),
    ] = None,
    pool: Annotated[
        int | None, typer.Option(min=1, help="Pool by so many voxels per axis.")
    ] = None,
    only: session.Only = None,
    peers: Annotated[bool, typer.Option(help="Measure PyTorch, too.")] = True,
    peer: session.Peer = None,
    proposals: session.Proposals = None,
    costs: session.CostsChoice = "auto",
    threads: session.Threads = None,
    repeats: session.Repeats = 5,
    budget: Annotated[
        float | None,
        typer.Option(
            min=session.LEAST_BUDGET,
            help="Seconds for the counted rounds of one contestant. Default: 60, on a GPU 3.",
        ),
    ] = None,
    out: session.Out = None,
) -> None:
    """Compare all primitives on a layer with PyTorch."""
    images, extent, seconds = DEFAULTS[device]
    alike = [(count, count) for count in maps or ()]
    features_of = alike or [(features, out_features)]
    layers = layers_of(kernel, batch or [images], size or [extent], features_of, pool)
    effort = Effort(repeats, budget or seconds)
    known = CPU_NAMES if device == "cpu" else GPU_NAMES
    session.check_known("peer", peer or [], known)
    rivals = tuple(peer or known) if peers else ()
    if device == "cpu":
        session.refuse(device, proposals=proposals, fastest=fastest)
    machine = session.machine_with(device, threads)
    session.check_primitives(only or [], machine)
    model = cost_model(catalogue(machine), costs)
    typer.echo(f"predicted times: {model.source}")
    ceilings = session.ceilings_with(device, machine.host.threads)

    def compared(operation: Layer, shape: Shape5) -> Iterator[Row]:
        session.progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        if isinstance(ceilings, Ceilings):
            yield from compare_layer(
                machine, operation, shape, only or [], effort, ceilings, peers=rivals, model=model
            )
        else:
            yield from compare_on_gpu(
                fastest_of(
                    able("gpu", machine, only or [], operation, shape), operation, shape, fastest
                ),
                operation,
                shape,
                effort,
                ceilings,
                model,
                rivals,
                proposals or PROPOSALS,
            )

    kind: Kind = "layer" if device == "cpu" else "gpu-layers"
    rank = _seconds if device == "cpu" else _nanoseconds
    rows: list[Row] = []
    for operation, shape in layers:
        found: list[Row] = []
        for row in compared(operation, shape):
            if device == "gpu":
                session.progress(f"{row['name']}: {_nanoseconds(row):.3f} ns/voxel")
            found = sorted([*found, row], key=rank)
            session.save_to(out, kind, rows + found, [ceilings])
        rows += found
        typer.echo(table(kind, found))


def layers_of(
    kernels: list[int],
    batches: list[int],
    sizes: list[int],
    features: list[tuple[int, int]],
    window: int | None = None,
) -> list[tuple[Layer, Shape5]]:
    """Return every combination, as layers and the shapes of their inputs.

    ``features`` are pairs of input and output maps.

    Raises:
        InvalidInput: a kernel with its pooling sees more than there is.
    """
    seen = max(kernels, default=1) + (window or 1) - 1
    if seen > min(sizes):
        raise InvalidInput(
            f"--kernel {max(kernels)} needs {seen} voxels per axis: --size {min(sizes)} is less"
        )
    return [
        (
            layer(Vec3.of(kernel), *maps, window),
            Shape5.of(batch, maps[0], Vec3.of(size)),
        )
        for maps, kernel, batch, size in product(features, kernels, batches, sizes)
    ]


def layer(kernel: Vec3, features: int, out_features: int, window: int | None = None) -> Layer:
    """Return the convolution that is compared, with max-pooling over a window if one is given."""
    conv = Conv("conv1", features, out_features, kernel, "relu")
    return conv if window is None else PooledConv(conv, Pool("pool1", Vec3.of(window)))


def convolution_of(layer: Layer) -> Conv:
    """Return the convolution, alone or with its pooling."""
    return layer.conv if isinstance(layer, PooledConv) else layer


def about_layer(layer: Layer, shape: Shape5) -> Row:
    """Return what every row says about its layer."""
    conv = convolution_of(layer)
    return {
        "kernel": str(conv.kernel),
        "pool": str(layer.pool.window) if isinstance(layer, PooledConv) else None,
        "maps": f"{conv.in_features}->{conv.out_features}",
        "batch": shape.n,
        "input": str(shape),
    }


def weights_of(layer: Layer) -> ConvWeights:
    """Return random weights of a layer."""
    conv = convolution_of(layer)
    return random_weights(Network.chain("layer", conv.in_features, (conv,)), 0)[conv.name]


def compare_layer(
    machine: Machine,
    layer: Layer,
    shape: Shape5,
    only: list[str],
    effort: Effort,
    ceilings: Ceilings,
    *,
    peers: tuple[str, ...] = CPU_NAMES,
    model: CostModel = BUILT_IN,
) -> list[Row]:
    """Return a row for each primitive on the CPU, or those in ``only``, and for each peer.

    The fastest come first. ``model`` predicts our times. A contestant has a row with a reason if
    it would not end within the budget, does not fit the memory, or failed before its first time
    was taken. Voxels are those of the convolution, even if the layer is pooled.

    Raises:
        InvalidInput: none of ``only`` does such a layer.
    """
    weights = weights_of(layer)
    ours = _Primitives(machine, layer, shape, weights, only, effort.budget, model)
    least = _direct_flops(layer, shape._replace(n=1)) / ceilings.flops
    threads = machine.host.threads
    with cpu_peers(layer, shape, weights, threads, effort, least, peers) as rivals:
        contestants: dict[str, Stopwatch] = {**ours.stopwatches(), **rivals.stopwatches}
        with ours.arena().in_use():
            results = run_rounds(contestants, effort)
        ran = {name: result for name, result in results.items() if result.ran}
        rows = []
        for name, result in ran.items():
            rates = [(ran[peer], 1.0) for peer in same_class(name) if peer in ran]
            row = {"name": name, **_speed(result, layer, shape), **speedups(result, 1.0, rates)}
            if name in ours.runs:
                row |= ours.row(name) | _roofline(ours.costs[name], row["seconds"], ceilings)
            else:
                row |= rivals.row(name)
            rows.append(row)
        rows += [
            {"name": name, "skipped": reason}
            for name, reason in {**ours.skipped, **rivals.failed}.items()
            if name not in ran
        ]
    about = {**about_layer(layer, shape), "threads": threads}
    return sorted(({**about, **row} for row in rows), key=_seconds)


def _seconds(row: Row) -> float:
    return float(row.get("seconds", float("inf")))


def _nanoseconds(row: Row) -> float:
    """Return the time for a voxel; infinite if nothing was measured."""
    return float(row.get("ns_per_voxel", float("inf")))


def voxels_of(layer: Layer, shape: Shape5) -> int:
    """Return the output voxels of a convolution, before it is pooled."""
    return shape.n * (shape.size - convolution_of(layer).kernel + 1).volume


def _direct_flops(layer: Layer, shape: Shape5) -> float:
    conv = convolution_of(layer)
    taps = conv.in_features * conv.kernel.volume
    return 2.0 * taps * conv.out_features * voxels_of(layer, shape)


def _speed(result: Result, layer: Layer, shape: Shape5) -> Row:
    voxels, seconds = voxels_of(layer, shape), result.timing.median
    flops = _direct_flops(layer, shape) / seconds
    return {
        **result.record(),
        "voxels": voxels,
        "voxels_per_s": voxels / seconds,
        "ns_per_voxel": seconds * 1e9 / voxels,
        "gflops_direct": flops / 1e9,
        "tflops_direct": flops / 1e12,
    }


def _roofline(cost: Cost, seconds: float, ceilings: AnyCeilings) -> Row:
    """Return the floor under the operations and bytes that a primitive declares."""
    floor = ceilings.floor(cost)
    return {
        "declared_flops": cost.flops,
        "declared_bytes": cost.bytes_moved,
        "floor_seconds": floor.seconds,
        "bound": floor.bound,
        "achieved": floor.share(seconds),
    }


def _declared(primitive: Primitive, cost: Cost, predicted: Estimate) -> Row:
    return {
        "accuracy": primitive.accuracy,
        "model_seconds": predicted.seconds,
        "model_error": predicted.error,
        "declared_mib": cost.memory.working / MIB,
        "resident_mib": cost.memory.resident / MIB,
    }


class _Primitives:
    """Our contestants on a CPU: those that apply, fit and end in time are built."""

    def __init__(
        self,
        machine: Machine,
        layer: Layer,
        shape: Shape5,
        weights: ConvWeights,
        only: list[str],
        budget: float,
        model: CostModel,
    ) -> None:
        self.runs: dict[str, Callable[[Float32], Float32]] = {}
        self.skipped: dict[str, str] = {}
        self.costs: dict[str, Cost] = {}
        self._layer, self._weights = layer, weights
        self._declared: dict[str, Row] = {}
        self._x = normal(shape)
        resident = self._x.nbytes
        for primitive in able("cpu", machine, only, layer, shape):
            name, cost = primitive.name, primitive.cost(layer, shape)
            needed = resident + cost.memory.resident + cost.memory.working
            predicted = model.estimate(primitive, layer, shape, cost)
            seconds = predicted.seconds
            if seconds > budget:
                self.skipped[name] = f"predicted to take {seconds:.0f} s, beyond {budget:.0f} s"
            elif needed > machine.host.memory:
                self.skipped[name] = f"needs {in_units(needed)} beside the others built before it"
            else:
                self.runs[name] = primitive.build(layer, shape, weights)
                self.costs[name] = cost
                self._declared[name] = _declared(primitive, cost, predicted)
                resident += cost.memory.resident

    def stopwatches(self) -> dict[str, Stopwatch]:
        return {name: stopwatch(partial(run, self._x)) for name, run in self.runs.items()}

    def arena(self) -> Arena:
        return Arena(max((cost.memory.working for cost in self.costs.values()), default=0))

    def row(self, name: str) -> Row:
        """Return model, declaration, error and peak memory, from one more run outside the arena."""
        with peak_memory() as peak:
            y = self.runs[name](self._x)
        return {
            **self._declared[name],
            "error": sampled_error(self._x, y, self._layer, self._weights),
            "peak_mib": (peak.added + self._x.nbytes) / MIB,
        }


def able(
    device: DeviceKind, machine: Machine, only: list[str], layer: Layer, shape: Shape5
) -> list[Primitive]:
    """Return the primitives for a device that do a layer.

    Raises:
        InvalidInput: none of ``only`` does such a layer.
    """
    primitives = on_device(catalogue(machine), device)
    wanted = [primitive for name, primitive in primitives.items() if not only or name in only]
    able = [primitive for primitive in wanted if primitive.out_shape(layer, shape) is not None]
    if only and not able:
        raise InvalidInput(
            f"none of --only {', '.join(only)} computes {layer.name} on {shape}; leave it out"
        )
    return able


def fastest_of(
    primitives: list[Primitive], layer: Layer, shape: Shape5, count: int | None
) -> list[Primitive]:
    """Return so many primitives of each accuracy class, the fastest by the built-in model first."""

    def seconds(primitive: Primitive) -> float:
        cost = primitive.cost(layer, shape)
        return BUILT_IN.estimate(primitive, layer, shape, cost).seconds

    if count is None:
        return primitives
    classes: dict[str, list[Primitive]] = defaultdict(list)
    for primitive in sorted(primitives, key=seconds):
        classes[class_of(primitive)].append(primitive)
    return [primitive for each in classes.values() for primitive in each[:count]]


def compare_on_gpu(
    primitives: list[Primitive],
    layer: Layer,
    shape: Shape5,
    effort: Effort,
    ceilings: GpuCeilings,
    model: CostModel = BUILT_IN,
    peers: tuple[str, ...] = GPU_NAMES,
    proposals: int = PROPOSALS,
) -> Iterator[Row]:
    """Yield a row for each primitive on the GPU, and for each way PyTorch can, as they come.

    One after the other has the GPU to itself. A contestant that failed, or would take longer than
    its budget, has a row with the reason. PyTorch takes a part at a time. It repeats that until it
    has computed as many voxels as ours, or the budget is used. Voxels are those of the
    convolution, even if the layer is pooled.
    """
    weights = weights_of(layer)
    x = cupy().random.default_rng(0).standard_normal(shape, dtype="float32")
    about = {**ceilings.about, **about_layer(layer, shape)}
    for primitive in primitives:
        try:
            row = _ours_on_gpu(primitive, layer, weights, x, effort, ceilings, model)
        except (ZnniError, MemoryError, RuntimeError) as error:
            row = {"skipped": _first_line(error)}
        yield about | {"name": primitive.name, "accuracy": primitive.accuracy} | row
    release_gpu_memory()
    part_shape = part_at_once(layer, shape)
    part = x[: part_shape.n, :, : part_shape.z]
    for name in peers if has_torch() else ():
        try:
            # Nothing here refers to the layer once it is measured: its memory is given back.
            row = _torch_on_gpu(
                TorchLayer(name, layer, weights, part, "cuda", proposals),
                layer, weights, part, voxels_of(layer, shape), effort,
            )  # fmt: skip
        except RuntimeError as error:
            row = {"skipped": _first_line(error)}
        free_torch_memory()
        yield about | {"name": name} | row


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _ours_on_gpu(
    primitive: Primitive,
    layer: Layer,
    weights: ConvWeights,
    x: Any,
    effort: Effort,
    ceilings: GpuCeilings,
    model: CostModel,
) -> Row:
    shape = Shape5(*x.shape)
    cost = primitive.cost(layer, shape)
    predicted = model.estimate(primitive, layer, shape, cost)
    if predicted.seconds > effort.budget:
        return {"skipped": f"would take {predicted.seconds:,.0f} s or so"}
    run = primitive.build(layer, shape, weights)
    arena = DeviceArena(cost.memory.working - shape.nbytes)
    with arena.in_use():
        work = partial(run, x)
        result = rounds_on_gpu(work, effort)
        y = work()
        error = sampled_error(OnDevice(x), OnDevice(y), layer, weights)
        del y
    roofline = _roofline(cost, result.timing.median, ceilings)
    per_voxel = 1e9 / voxels_of(layer, shape)
    return {
        **_speed(result, layer, shape),
        **roofline,
        "traffic_ns": cost.bytes_moved / ceilings.copy_bandwidth * per_voxel,
        "floor_ns": roofline["floor_seconds"] * per_voxel,
        **_declared(primitive, cost, predicted),
        "error": error,
        "peak_mib": (arena.peak + shape.nbytes) / MIB,
    }


def _torch_on_gpu(
    work: TorchLayer,
    layer: Layer,
    weights: ConvWeights,
    part: Any,
    voxels: int,
    effort: Effort,
) -> Row:
    shape = Shape5(*part.shape)
    work()  # autotunes
    affordable = effort.budget / effort.repeats / seconds_on_device(work)
    times = max(1, min(voxels // voxels_of(layer, shape), int(affordable)))

    def again() -> None:
        for _ in range(times):
            work()

    result = rounds_on_gpu(again, effort)
    return {
        **_speed(result, layer, shape._replace(n=times * shape.n)),
        "error": sampled_error(OnDevice(part), work.output(), layer, weights),
        "peak_mib": gpu_peak_bytes(work) / MIB,
        "measured": f"{times} times {shape}",
    }
