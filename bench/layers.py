"""Every primitive of the catalogue on one convolution, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from bench.accuracy import sampled_error
from bench.ceilings import Ceilings
from bench.child import Child, ChildFailed
from bench.noise import normal
from bench.record import Row
from bench.rounds import Effort, Result, Stopwatch, run_rounds, speedups, stopwatch
from bench.torch_layers import NAMES, TorchConvolution, same_class
from bench.torch_settings import ENVIRONMENT, has_torch
from planner.cost_model import BUILT_IN, CostModel, Estimate
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.core.text import in_units
from znni.machine.arena import Arena
from znni.machine.arrays import peak_memory
from znni.machine.machine import Machine
from znni.network.network import Conv, Network, Pool, PooledConv
from znni.network.weights import ConvWeights, Float32, random_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Primitive
from znni.primitives.catalogue import catalogue

Layer: TypeAlias = Conv | PooledConv

# A direct convolution reaches at least this share of the arithmetic ceiling.
LEAST_SHARE_OF_PEAK = 0.4


def check_primitives(names: list[str], machine: Machine) -> None:
    """Check that the catalogue has these.

    Raises:
        InvalidInput: a name that is none of its primitives.
    """
    known = catalogue(machine)
    for name in names:
        if name not in known:
            raise InvalidInput(f"--only {name} is unknown; choose from {', '.join(sorted(known))}")


def layer(kernel: Vec3, features: int, out_features: int, window: int | None = None) -> Layer:
    """The convolution that is compared, with max-pooling over so many voxels per axis if given."""
    conv = Conv("conv1", features, out_features, kernel, "relu")
    return conv if window is None else PooledConv(conv, Pool("pool1", Vec3.of(window)))


def compare_layer(
    machine: Machine,
    layer: Layer,
    shape: Shape5,
    only: list[str],
    effort: Effort,
    ceilings: Ceilings,
    *,
    peers: bool = True,
    model: CostModel = BUILT_IN,
) -> list[Row]:
    """A row for each primitive, or those named in ``only``, and each peer; fastest first.

    ``model`` predicts the times of ours. What would not end within the budget, not fit the memory,
    or failed before its first time was taken has a row that says so. Where the layer is pooled, its
    voxels are those of the convolution all the same.

    Raises:
        InvalidInput: none of ``only`` does such a layer.
    """
    conv = convolution_of(layer)
    weights = random_weights(Network.chain("layer", conv.in_features, (conv,)), 0)[conv.name]
    ours = _Primitives(machine, layer, shape, weights, only, effort.budget, model)
    with _torch_convolutions(machine, layer, shape, weights, effort, ceilings, peers) as rivals:
        contestants: dict[str, Stopwatch] = {**ours.stopwatches(), **rivals.stopwatches}
        with ours.arena().in_use():
            results = run_rounds(contestants, repeats=effort.repeats, budget=effort.budget)
        ran = {name: result for name, result in results.items() if result.ran}
        rows = []
        for name, result in ran.items():
            measured = ours if name in ours.runs else rivals
            row = {"name": name, **result.record(), **measured.row(name)}
            rates = [(ran[peer], 1.0) for peer in same_class(name) if peer in ran]
            row |= _speed(result, conv, shape, speedups(result, 1.0, rates))
            row |= _roofline(row, ceilings)
            rows.append(row)
        rows += [
            {"name": name, "skipped": reason}
            for name, reason in {**ours.skipped, **rivals.failed}.items()
            if name not in ran
        ]
    about = {
        "kernel": str(conv.kernel),
        "pool": str(layer.pool.window) if isinstance(layer, PooledConv) else None,
        "maps": f"{conv.in_features}->{conv.out_features}",
        "batch": shape.n,
        "input": str(shape),
        "threads": machine.host.threads,
    }
    return sorted(({**about, **row} for row in rows), key=_seconds)


def convolution_of(layer: Layer) -> Conv:
    """The convolution, alone or with its pooling."""
    return layer.conv if isinstance(layer, PooledConv) else layer


def _seconds(row: Row) -> float:
    return float(row.get("seconds", float("inf")))


def _speed(result: Result, conv: Conv, shape: Shape5, ratio: Row) -> Row:
    seconds = result.timing.median
    voxels = shape.n * (shape.size - conv.kernel + 1).volume
    return {
        "voxels_per_s": voxels / seconds,
        "gflops_direct": _direct_flops(conv, shape) / seconds / 1e9,
        **ratio,
    }


def _roofline(row: Row, ceilings: Ceilings) -> Row:
    """The floor under the operations and bytes that a row declares, if it does."""
    if row.get("declared_flops") is None:
        return {}
    floor = ceilings.floor(row["declared_flops"], row["declared_bytes"])
    return {
        "floor_seconds": floor.seconds,
        "bound": floor.bound,
        "achieved": floor.share(row["seconds"]),
    }


def _direct_flops(conv: Conv, shape: Shape5) -> float:
    voxels = shape.n * (shape.size - conv.kernel + 1).volume
    return 2.0 * conv.in_features * conv.kernel.volume * conv.out_features * voxels


class _Primitives:
    """Our contestants: those that apply, fit and end in time are built."""

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
        self._layer, self._weights = layer, weights
        self._costs: dict[str, tuple[Primitive, Cost, Estimate]] = {}
        self._x = normal(shape)
        resident = self._x.nbytes
        for name, primitive in catalogue(machine).items():
            left_out = only and name not in only
            if left_out or primitive.out_shape(layer, shape) is None:
                continue
            cost = primitive.cost(layer, shape)
            needed = resident + cost.memory.resident + cost.memory.working
            predicted = model.estimate(primitive, layer, shape, cost)
            seconds = predicted.seconds
            if seconds > budget:
                self.skipped[name] = f"predicted to take {seconds:.0f} s, beyond {budget:.0f} s"
            elif needed > machine.host.memory:
                self.skipped[name] = f"needs {in_units(needed)} beside the others built before it"
            else:
                self.runs[name] = primitive.build(layer, shape, weights)
                self._costs[name] = primitive, cost, predicted
                resident += cost.memory.resident
        if only and not self.runs and not self.skipped:
            raise InvalidInput(
                f"none of --only {', '.join(only)} computes {layer.name} on {shape}; leave it out"
            )

    def stopwatches(self) -> dict[str, Stopwatch]:
        return {name: stopwatch(partial(run, self._x)) for name, run in self.runs.items()}

    def arena(self) -> Arena:
        return Arena(max((cost.memory.working for _, cost, _ in self._costs.values()), default=0))

    def row(self, name: str) -> Row:
        """Model, declaration, error and peak memory, from one more run outside the arena."""
        primitive, cost, predicted = self._costs[name]
        with peak_memory() as peak:
            y = self.runs[name](self._x)
        return {
            "accuracy": primitive.accuracy,
            "model_seconds": predicted.seconds,
            "model_error": predicted.error,
            "declared_flops": cost.flops,
            "declared_bytes": cost.bytes_moved,
            "error": sampled_error(self._x, y, self._layer, self._weights),
            "peak_mib": (peak.added + self._x.nbytes) / 2**20,
            "declared_mib": cost.memory.working / 2**20,
            "resident_mib": cost.memory.resident / 2**20,
        }


class _Torch:
    """PyTorch's contestants, in a child process, and what is known of them.

    Args:
        child: serves a ``TorchConvolution``; None where there is none.
        part: what is measured, if not the whole batch.
        failed: by name, why there is no time, or no further one.
    """

    def __init__(self, child: Child | None, part: str | None, failed: dict[str, str]) -> None:
        self._child, self._part = child, part
        self.failed = failed
        self.stopwatches: dict[str, Stopwatch] = {}
        if child:
            self.stopwatches = {
                name: child.stopwatch(failed, name, "seconds", name) for name in NAMES
            }

    def row(self, name: str) -> Row:
        """Error, and a note on what was not measured."""
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
def _torch_convolutions(
    machine: Machine,
    layer: Layer,
    shape: Shape5,
    weights: ConvWeights,
    effort: Effort,
    ceilings: Ceilings,
    wanted: bool,
) -> Iterator[_Torch]:
    """As many items of the batch as are likely to stay within the budget."""
    if not wanted or not has_torch():
        reason = "PyTorch is not installed: pip install -e '.[peers]'"
        yield _Torch(None, None, dict.fromkeys(NAMES, reason) if wanted else {})
        return
    item_flops = _direct_flops(convolution_of(layer), shape._replace(n=1))
    least = item_flops / ceilings.flops
    if least > effort.budget:
        reason = f"one input takes at least {least:.0f} s, beyond {effort.budget:.0f} s"
        yield _Torch(None, None, dict.fromkeys(NAMES, reason))
        return
    one_run = effort.budget / (effort.repeats + 1) * LEAST_SHARE_OF_PEAK
    items = max(1, min(shape.n, int(one_run / least)))
    part = f"{items} of {shape.n} inputs" if items < shape.n else None
    threads = machine.host.threads
    with Child(
        TorchConvolution, layer, weights, shape, items, threads, environment=ENVIRONMENT
    ) as child:
        yield _Torch(child, part, {})
