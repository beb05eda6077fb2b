"""Kernels of the GPU's own chip beside those that run on older ones too, and beside cuDNN.

A GPU stands for an older chip: plans and kernels are then those of the older one, and the driver
translates them. The fastest primitive by the built-in model is measured for each. All layers of one
size have nearly the same number of values, so that many maps do not take longer than few.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Annotated, Any

import typer

from bench import session
from bench.ceilings import GpuCeilings
from bench.layers import (
    Layer,
    able,
    about_layer,
    compare_on_gpu,
    fastest_of,
    layer,
    voxels_of,
    weights_of,
)
from bench.patches import release_gpu_memory
from bench.peers.torch_layer import GPU_NAMES
from bench.peers.torch_settings import PROPOSALS
from bench.record import Row
from bench.rounds import Effort
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda import STAND_IN, cupy
from znni.machine.device_arena import DeviceArena
from znni.primitives.gpu.common.base import Pass, ShapedPrimitive

# Values of an input, unless another number is given: a GPU needs some milliseconds for its layer.
VALUES = 2**28

# What the tables call the GPU's own chip.
OWN = "own"


def chips_command(
    kernel: session.Kernels,
    maps: Annotated[
        list[int], typer.Option(min=1, help="Input and output maps alike; repeatable.")
    ],
    capability: Annotated[
        list[str],
        typer.Option(help="Compute capability of a chip that the GPU stands for; repeatable."),
    ] = ["8.0"],  # noqa: B006
    own: Annotated[bool, typer.Option(help="Measure kernels of the GPU's own chip, too.")] = True,
    extent: Annotated[int, typer.Option(min=1, help="Output voxels per axis.")] = 64,
    values: Annotated[int, typer.Option(min=1, help="Values of an input, at most.")] = VALUES,
    only: session.Only = None,
    passes: Annotated[
        bool, typer.Option(help="Measure each kernel of a primitive, beside its floor.")
    ] = False,
    peer: session.Peer = None,
    proposals: session.Proposals = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 3.0,
    out: session.Out = None,
) -> None:
    """Compare kernels of the GPU's own chip with those of older chips, and with PyTorch."""
    session.check_known("peer", peer or [], GPU_NAMES)
    session.check_primitives(only or [], session.machine_with("gpu", None))
    ceilings = session.ceilings_with("gpu", 1)
    if not isinstance(ceilings, GpuCeilings):
        raise TypeError("these are no ceilings of a GPU")
    chips: list[str | None] = [*([None] if own else []), *capability]
    effort = Effort(repeats, budget)

    def measured() -> Iterator[list[Row]]:
        for extents, count in ((Vec3.of(k), count) for k in kernel for count in maps):
            conv = layer(extents, count, count)
            size = extents + extent - 1
            images = max(1, values // (count * size.volume))
            shape = Shape5.of(images, count, size)
            session.progress(f"{extents} of {count} maps on {shape}")
            rows: list[Row] = []
            for chip in chips:
                with standing_for(chip):
                    rows += fastest_on(
                        chip or OWN, conv, shape, only or [], effort, ceilings, passes=passes
                    )
            peers = compare_on_gpu(
                [], conv, shape, effort, ceilings,
                peers=tuple(peer or ()), proposals=proposals or PROPOSALS,
            )  # fmt: skip
            yield with_shares([*rows, *peers])

    session.report_all("gpu-chips", measured(), [ceilings], out)


@contextmanager
def standing_for(capability: str | None) -> Iterator[None]:
    """Let GPUs stand for an older chip, or for themselves, within a ``with`` block."""
    before = os.environ.pop(STAND_IN, None)
    if capability is not None:
        os.environ[STAND_IN] = capability
    try:
        yield
    finally:
        os.environ.pop(STAND_IN, None)
        if before is not None:
            os.environ[STAND_IN] = before


def fastest_on(
    chip: str,
    conv: Layer,
    shape: Shape5,
    only: list[str],
    effort: Effort,
    ceilings: GpuCeilings,
    *,
    passes: bool,
) -> Iterator[Row]:
    """Yield rows of the current chip: those of our fastest primitive in each accuracy class.

    Args:
        chip: what tables call the chip.
        conv: the layer.
        shape: the shape of its input.
        only: the primitives to choose from; all by default.
        effort: how long to measure.
        ceilings: of the GPU.
        passes: whether the kernels of a primitive follow it.
    """
    about = {**about_layer(conv, shape), "chip": chip}
    try:
        found = able("gpu", session.machine_with("gpu", None), only, conv, shape)
    except InvalidInput as error:
        yield about | {"skipped": str(error)}
        return
    ours = [primitive for primitive in found if isinstance(primitive, ShapedPrimitive)]
    for primitive in fastest_of([*ours], conv, shape, 1):
        (row,) = compare_on_gpu([primitive], conv, shape, effort, ceilings, peers=())
        if "seconds" in row:
            row["tflops_declared"] = row["declared_flops"] / row["seconds"] / 1e12
        yield row | about
        if passes and isinstance(primitive, ShapedPrimitive) and "seconds" in row:
            for part in passes_of(primitive, conv, shape, effort, ceilings):
                yield about | {"name": primitive.name} | part
        release_gpu_memory()


def passes_of(
    primitive: ShapedPrimitive[Any],
    conv: Layer,
    shape: Shape5,
    effort: Effort,
    ceilings: GpuCeilings,
) -> Iterator[Row]:
    """Yield the time of each of a primitive's kernels, beside the least for its work."""
    work = primitive.work(conv, shape)
    passes = {} if work is None else work.passes
    run: Any = primitive.build(conv, shape, weights_of(conv))
    clocks = {name: _Clock(getattr(run, name)) for name in passes}
    for name, clock in clocks.items():
        setattr(run, name, clock)
    x = cupy().random.default_rng(0).standard_normal(shape, dtype="float32")
    taken: dict[str, list[float]] = {name: [] for name in passes}
    with DeviceArena(primitive.cost(conv, shape).memory.working - shape.nbytes).in_use():
        for _ in range(1 + effort.repeats):
            run(x)
            for name, clock in clocks.items():
                taken[name].append(clock.seconds())
    for name, of_pass in passes.items():
        yield {
            "pass": name,
            **_beside_floor(of_pass, median(taken[name][1:]), voxels_of(conv, shape), ceilings),
        }


class _Clock:
    """A function that times its calls on the GPU.

    Args:
        function: starts kernels.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._events: list[tuple[Any, Any]] = []

    def __call__(self, *arguments: Any) -> None:
        start, stop = (cupy().cuda.Event() for _ in range(2))
        start.record()
        self._function(*arguments)
        stop.record()
        self._events.append((start, stop))

    def seconds(self) -> float:
        """Return the seconds of all calls since the last time."""
        events, self._events = self._events, []
        for _, stop in events:
            stop.synchronize()
        return sum(float(cupy().cuda.get_elapsed_time(*pair)) / 1e3 for pair in events)


def _beside_floor(work: Pass, seconds: float, voxels: int, ceilings: GpuCeilings) -> Row:
    rate = ceilings.matrix_flops if work.on_tensor_cores else ceilings.flops
    arithmetic, traffic = work.flops / rate, work.bytes_moved / ceilings.copy_bandwidth
    floor = max(arithmetic, traffic)
    return {
        "seconds": seconds,
        "ns_per_voxel": seconds * 1e9 / voxels,
        "voxel_bytes": work.bytes_moved / voxels,
        "voxel_flops": work.flops / voxels,
        "tflops_declared": work.flops / seconds / 1e12,
        "floor_ns": floor * 1e9 / voxels,
        "bound": "flops" if arithmetic >= traffic else "bytes",
        "achieved": floor / seconds,
    }


def with_shares(rows: list[Row]) -> list[Row]:
    """Return rows with their share of the own chip's speed, and their speed over the best peer.

    A share is that of the own chip's primitive in the same accuracy class.
    """

    def best(chosen: Callable[[Row], bool]) -> float | None:
        speeds = (row["ns_per_voxel"] for row in rows if "ns_per_voxel" in row and chosen(row))
        return min(speeds, default=None)

    def shares(row: Row) -> Row:
        if "chip" not in row or "pass" in row or "ns_per_voxel" not in row:
            return {}
        own = best(lambda it: it.get("chip") == OWN and it.get("accuracy") == row["accuracy"])
        peer = best(lambda it: "chip" not in it)
        found = {"share_of_own": own, "over_peer": peer}
        return {name: it / row["ns_per_voxel"] for name, it in found.items() if it is not None}

    return [row | shares(row) for row in rows]
