"""Whole networks on a GPU: a plan's patches, and PyTorch's at the settings that suit it best.

One process has the GPU to itself; ours is done, and its memory given back, before PyTorch begins.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from bench.accuracy import CornerReference, samples
from bench.gpu_plan_patches import GpuPlanPatches
from bench.gpu_torch import give_back_memory, peak_bytes
from bench.noise import patch_input
from bench.record import Row
from bench.rounds import Effort, Result
from bench.torch_settings import LAYOUTS, WHOLE
from znni.cuda import cupy
from znni.network import Network
from znni.plans import Plan
from znni.shapes import Vec3

if TYPE_CHECKING:
    from bench.gpu_torch_network import TorchOnGpu

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
    """

    layout: str
    patch: Vec3
    seconds: float | None
    reason: str = ""

    @property
    def voxels_per_second(self) -> float:
        """Of output; 0 where it failed."""
        return 0.0 if self.seconds is None else self.patch.volume / self.seconds


def compare_gpu_network(
    plan: Plan,
    peers: list[str],
    extents: list[int],
    effort: Effort,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Rows for a plan's patches, and for each peer's best patch.

    Args:
        plan: ours.
        peers: names of ``gpu_torch_network.NAMES``.
        extents: output voxels per axis of PyTorch's patches, the likeliest first.
        effort: of which the budget is each peer's.
        progress: told what is being done.
    """
    from bench.gpu_torch_network import reference_on_gpu

    network = plan.network
    reference = CornerReference(network, reference_on_gpu(network))
    progress(f"{network.name}, ours")
    rows = [_ours(plan, effort.repeats, reference)]
    patches = [rounded(network, extent) for extent in extents]
    for name in peers:
        progress(f"{network.name}, {name}")
        rows.append(_peer(network, name, patches, effort, reference))
    ours = rows[0]["voxels_per_s"]
    gains = ({"gain": ours / row["voxels_per_s"]} if "voxels_per_s" in row else {} for row in rows)
    about = {"network": network.name, "device": plan.device.name}
    return [{**about, **row, **gain} for row, gain in zip(rows, gains, strict=True)]


def rounded(network: Network, extent: int) -> Vec3:
    """The multiple of the total pooling below, or the first one."""
    pooling = network.total_pooling
    return (Vec3.of(extent) // pooling).maximum(Vec3(1, 1, 1)) * pooling


def best_of(
    patches: list[Vec3], attempt: Callable[[str, Vec3], Try], budget: float
) -> tuple[list[Try], float]:
    """Try the first patch in each layout, and the others in the faster of them.

    Returns:
        The tries, the fastest first, and the seconds that they took.
    """
    start = perf_counter()
    tries = [attempt(layout, patches[0]) for layout in LAYOUTS]
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


def _ours(plan: Plan, repeats: int, reference: CornerReference) -> Row:
    start = perf_counter()
    patches = GpuPlanPatches(plan)
    prepared = perf_counter() - start
    result = Result(patches.seconds(repeats))
    y = patches.output
    if y is None:
        raise RuntimeError("no patch was computed")
    count = Vec3.of(PLACE)
    judged = [(at, samples(plan.network, y, at, count)) for at in places(plan.patch, plan.network)]
    volume = plan.patch.volume
    row = {
        "name": OURS,
        "patch": str(plan.patch),
        **result.record(),
        "voxels_per_s": volume / result.timing.median,
        "layers_seconds": patches.layer_seconds(),
        "prepare_seconds": prepared,
        "predicted_voxels_per_s": volume / plan.patch_seconds,
        "peak_gib": patches.peak / 2**30,
        "declared_gib": plan.device_memory.total / 2**30,
        "layers": ", ".join(f"{step.operation.name} {step.primitive}" for step in plan.steps),
    }
    del patches
    give_back_ours()
    return row | {"error": reference.error_of(judged)}


def give_back_ours() -> None:
    """Return what a plan took of the GPU, once nothing refers to it."""
    gc.collect()
    cupy().get_default_memory_pool().free_all_blocks()


def _peer(
    network: Network,
    name: str,
    patches: list[Vec3],
    effort: Effort,
    reference: CornerReference,
) -> Row:
    from bench.gpu_torch_network import NAMES, TorchOnGpu

    kind, operators = NAMES[name]

    def attempt(layout: str, patch: Vec3) -> Try:
        try:
            peer = TorchOnGpu(network, kind, layout, operators)
            x = patch_input(network, patch)
            peer.scaled_from_one_fragment(x)  # autotunes
            return Try(layout, patch, peer.scaled_from_one_fragment(x))
        except RuntimeError as error:  # out of memory, or cuDNN cannot
            return Try(layout, patch, None, str(error).splitlines()[0])
        finally:
            give_back_memory()

    tries, spent = best_of(patches, attempt, effort.budget)
    best = tries[0]
    row: Row = {
        "name": name,
        "tried": {f"{t.layout} {t.patch}": t.voxels_per_second or t.reason for t in tries},
    }
    if best.seconds is None:
        return row | {"skipped": best.reason}
    peer = TorchOnGpu(network, kind, best.layout, operators)
    measured = _measured(peer, best, effort.budget - spent, effort.repeats)
    found = peer.corners()
    give_back_memory()
    return {
        **row,
        "patch": str(best.patch),
        "layout": best.layout,
        **measured,
        "error": None if found is None else reference.error(found),
    }


def _measured(peer: TorchOnGpu, best: Try, budget: float, repeats: int) -> Row:
    """A peer's best patch: whole, if the budget suffices, and else scaled from one fragment."""
    seconds = best.seconds or 0.0
    whole = (repeats + 1) * seconds <= budget
    x = patch_input(peer.network, best.patch)
    work = peer.timed if whole else peer.scaled_from_one_fragment

    taken: list[float] = []
    work(x)  # autotunes
    peak = peak_bytes(lambda: taken.extend(work(x) for _ in range(repeats)))
    result = Result(tuple(taken))
    return {
        **result.record(),
        "voxels_per_s": best.patch.volume / result.timing.median,
        "peak_gib": peak / 2**30,
        "measured": WHOLE if whole else peer.one_fragment,
    }
