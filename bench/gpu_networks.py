"""Whole networks on a GPU: a plan's patches, and PyTorch's at the settings that suit it best.

One process has the GPU to itself; ours is done, and its memory given back, before PyTorch begins.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter

import numpy as np

from bench.accuracy import CornerReference, Corners, samples
from bench.gpu_plan_patches import GpuPlanPatches
from bench.gpu_torch import PROPOSALS, give_back_memory, peak_bytes
from bench.noise import patch_input
from bench.record import Row
from bench.rounds import Effort, Result
from bench.torch_settings import WHOLE
from znni.core.options import OutputType
from znni.core.shapes import Vec3
from znni.machine.cuda import cupy
from znni.network.network import Network
from znni.network.weights import Float32
from znni.plans.plan import Plan

OURS = "znni"

# Places of a patch where our own output is judged, beside its corners, and voxels per axis there.
PLACES, PLACE = 6, 2


@dataclass(frozen=True)
class Try:
    """A setting of PyTorch that was measured.

    Attributes:
        layout: by PyTorch's name.
        patch: output voxels per axis.
        seconds: of a patch, scaled from one of the first pool's fragments; None where it failed.
        reason: for that.
        measured: what was, in words.
        peak: bytes that PyTorch held.
        corners: of the output.
    """

    layout: str
    patch: Vec3
    seconds: float | None
    reason: str = ""
    measured: str = ""
    peak: int = 0
    corners: Corners | None = None

    @property
    def voxels_per_second(self) -> float:
        """Of output; 0 where it failed."""
        return 0.0 if self.seconds is None else self.patch.volume / self.seconds


@dataclass(frozen=True)
class Settings:
    """What PyTorch is tried with.

    Attributes:
        names: of ``gpu_torch_network.NAMES``.
        layouts: by PyTorch's names.
        extents: output voxels per axis of patches, the likeliest first.
        proposals: of cuDNN, among which it is autotuned.
    """

    names: tuple[str, ...]
    layouts: tuple[str, ...]
    extents: tuple[int, ...]
    proposals: int = PROPOSALS


def compare_gpu_network(
    network: Network,
    plan: Plan | None,
    peers: Settings,
    effort: Effort,
    dtype: OutputType = "float32",
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Rows for a plan's patches, and for each peer's best patch, as they are measured.

    Args:
        network: what to compute.
        plan: ours, if it takes part.
        peers: PyTorch's.
        effort: of which the budget is each peer's.
        dtype: of our output, that the plan is for. The error of uint8, which holds 0 to 1 in 255
            steps, is not told.
        progress: told what is being done.
    """
    from bench.gpu_torch_network import reference_on_gpu

    reference = CornerReference(network, reference_on_gpu(network))
    ours = None
    if plan is not None:
        progress(f"{network.name}, ours")
        ours = _ours(plan, dtype, effort.repeats, reference)
        yield {"network": network.name} | ours
    noise = cache(partial(patch_input, network))
    for name in peers.names:
        progress(f"{network.name}, {name}")
        row = _peer(network, name, peers, effort, noise)
        corners = row.pop("corners", None)
        if corners is not None:
            row["error"] = reference.error(corners)
        if ours is not None and "voxels_per_s" in row:
            row["gain"] = ours["voxels_per_s"] / row["voxels_per_s"]
        yield {"network": network.name} | row


def rounded(network: Network, extent: int) -> Vec3:
    """The multiple of the total pooling below, or the first one."""
    pooling = network.total_pooling
    return (Vec3.of(extent) // pooling).maximum(Vec3(1, 1, 1)) * pooling


def best_of(
    layouts: tuple[str, ...],
    patches: list[Vec3],
    attempt: Callable[[str, Vec3], Try],
    budget: float,
) -> tuple[list[Try], float]:
    """Try the first patch in each layout, and the others in the faster of them.

    Returns:
        The tries, the fastest first, and the seconds that they took.
    """
    start = perf_counter()
    tries = [attempt(layout, patches[0]) for layout in layouts]
    layout = max(tries, key=lambda t: t.voxels_per_second).layout
    for patch in patches[1:]:
        if perf_counter() - start > budget:
            break
        tries.append(attempt(layout, patch))
    tries.sort(key=lambda t: t.voxels_per_second, reverse=True)
    return tries, perf_counter() - start


def places(patch: Vec3, network: Network) -> Iterator[Vec3]:
    """Where samples of a patch's output begin: its corners, and at random."""
    generator = np.random.default_rng(3)
    last = patch - 1 - network.total_pooling * (PLACE - 1)
    yield from (Vec3(0, 0, 0), last)
    for _ in range(PLACES):
        yield Vec3(*(int(generator.integers(extent + 1)) for extent in last))


def _ours(plan: Plan, dtype: OutputType, repeats: int, reference: CornerReference) -> Row:
    start = perf_counter()
    patches = GpuPlanPatches(plan, dtype)
    prepared = perf_counter() - start
    result = Result(patches.seconds(repeats))
    y = patches.output
    if y is None:
        raise RuntimeError("no patch was computed")
    count = Vec3.of(PLACE)
    judged = [(at, samples(plan.network, y, at, count)) for at in places(plan.patch, plan.network)]
    volume, layers = plan.patch.volume, sum(patches.layer_seconds().values())
    row = {
        "name": OURS,
        "patch": str(plan.patch),
        "output": dtype,
        **result.record(),
        # Of few patches, the time between two may be short where the one before was late.
        "voxels_per_s": volume / max(result.timing.median, layers),
        "layers_seconds": layers,
        "prepare_seconds": prepared,
        "predicted_voxels_per_s": volume / plan.patch_seconds,
        "peak_gib": patches.peak / 2**30,
        "declared_gib": plan.device_memory.total / 2**30,
        "layers": ", ".join(f"{step.operation.name} {step.primitive}" for step in plan.steps),
    }
    del patches
    give_back_ours()
    return row if dtype == "uint8" else row | {"error": reference.error_of(judged)}


def give_back_ours() -> None:
    """Return what a plan took of the GPU, once nothing refers to it."""
    gc.collect()
    cupy().get_default_memory_pool().free_all_blocks()


def _peer(
    network: Network,
    name: str,
    settings: Settings,
    effort: Effort,
    noise: Callable[[Vec3], Float32],
) -> Row:
    """A peer's best patch, with the corners of its output."""
    from bench.gpu_torch_network import NAMES, TorchOnGpu

    kind, operators = NAMES[name]

    def attempt(layout: str, patch: Vec3) -> Try:
        try:
            peer = TorchOnGpu(network, kind, layout, operators, settings.proposals)
            peer.scaled_from_one_fragment(noise(patch))  # autotunes
            taken: list[float] = []
            peak = peak_bytes(lambda: taken.append(peer.scaled_from_one_fragment(noise(patch))))
            seconds, part = taken[0], peer.one_fragment
            return Try(layout, patch, seconds, measured=part, peak=peak, corners=peer.corners())
        except RuntimeError as error:  # out of memory, or cuDNN cannot
            return Try(layout, patch, None, str(error).splitlines()[0])
        finally:
            give_back_memory()

    patches = [rounded(network, extent) for extent in settings.extents]
    tries, spent = best_of(settings.layouts, patches, attempt, effort.budget)
    best = tries[0]
    row: Row = {
        "name": name,
        "tried": {f"{t.layout} {t.patch}": t.voxels_per_second or t.reason for t in tries},
    }
    if best.seconds is None:
        return row | {"skipped": best.reason}
    row |= {"patch": str(best.patch), "layout": best.layout}
    if (effort.repeats + 1) * best.seconds > effort.budget - spent:
        row |= _told(best.patch, [best.seconds], best.peak)
        return row | {"measured": best.measured, "corners": best.corners}
    peer = TorchOnGpu(network, kind, best.layout, operators, settings.proposals)
    x = noise(best.patch)
    peer.timed(x)  # takes its memory; the engines are chosen
    taken: list[float] = []
    peak = peak_bytes(lambda: taken.extend(peer.timed(x) for _ in range(effort.repeats)))
    give_back_memory()
    return row | _told(best.patch, taken, peak) | {"measured": WHOLE, "corners": peer.corners()}


def _told(patch: Vec3, seconds: Sequence[float], peak: int) -> Row:
    result = Result(tuple(seconds))
    return {
        **result.record(),
        "voxels_per_s": patch.volume / result.timing.median,
        "peak_gib": peak / 2**30,
    }
