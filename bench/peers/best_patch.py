"""The peers for whole networks, and the patch and layout that suit each of them best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from bench.accuracy import Corners
from bench.child import Child, ChildFailed
from bench.peers.torch_settings import (
    ENVIRONMENT,
    LAYOUTS,
    NOT_INSTALLED,
    PROPOSALS,
    TYPES,
    has_torch,
)
from znni.core.shapes import Vec3
from znni.core.text import in_units
from znni.network.network import Network

# Activations that the peers compute after a convolution.
ACTIVATIONS = ("relu", "identity")

# Output voxels per axis of the patches that are tried: on a CPU, and on a GPU the likeliest first.
EXTENTS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 512)
GPU_EXTENTS = (384, 512, 256)

# Operations of a layer that are timed when patches are compared: some tenths of a second. One
# plane of the output, the least that is computed, may have more.
SWEEP_FLOPS = 2e10
SWEEP_REPEATS = 1
# The share of a contestant's budget that the search for its best patch may take.
SWEEP_SHARE = 0.4

# Patches that are tried in each layout, however long that takes.
LEAST_TRIED = 2


def _fragments(network: Network, dtype: str, layout: str, threads: int, ram: int) -> Any:
    from bench.peers.torch_fragments import TorchFragments

    return TorchFragments(network, dtype, layout, threads, ram)


def _dilated(network: Network, dtype: str, layout: str, threads: int, _ram: int) -> Any:
    from bench.peers.torch_dilated import TorchDilated

    return TorchDilated(network, dtype, layout, threads)


def _monai(network: Network, dtype: str, layout: str, threads: int, _ram: int) -> Any:
    from bench.peers.torch_dilated import MonaiWindows

    return MonaiWindows(network, dtype, layout, threads)


# The peers on a CPU: how each is made in its process, and the type that it computes in.
PEERS: dict[str, tuple[Callable[[Network, str, str, int, int], Any], str]] = {
    "torch_fp32": (_fragments, TYPES["fp32"]),
    "torch_bf16": (_fragments, TYPES["bf16"]),
    "dilated_fp32": (_dilated, TYPES["fp32"]),
    "monai_fp32": (_monai, TYPES["fp32"]),
}


@dataclass(frozen=True)
class Rivals:
    """The peers that compete, and the settings that they try.

    Attributes:
        names: of the peers.
        extents: output voxels per axis of their patches. A CPU's peers try them from the largest
            that the volume has; a GPU's in this order.
        layouts: of their arrays, by PyTorch's names.
        ram: bytes that a patch of a CPU's peer may take.
        proposals: how many engines of cuDNN autotuning tries on a GPU.
    """

    names: tuple[str, ...]
    extents: tuple[int, ...] = EXTENTS
    layouts: tuple[str, ...] = LAYOUTS
    ram: int = 0
    proposals: int = PROPOSALS


def missing(name: str, network: Network) -> str | None:
    """Return the reason why a CPU's peer cannot run a network here, if there is one."""
    for conv in network.convolutions:
        if conv.activation not in ACTIVATIONS:
            return f"PyTorch's peers have no {conv.activation}, which {conv.name} uses"
    if not has_torch():
        return NOT_INSTALLED
    if name.startswith("monai") and find_spec("monai") is None:
        return "MONAI is not installed: pip install -e '.[peers]'"
    return None


def start(name: str, network: Network, layout: str, threads: int, ram: int) -> Child:
    """Start a peer in a new process, for patches whose arrays fit ``ram`` bytes.

    The process has the memory settings that suit PyTorch.
    """
    make, dtype = PEERS[name]
    return Child(make, network, dtype, layout, threads, ram, environment=ENVIRONMENT)


def rounded(network: Network, extent: int) -> Vec3:
    """Return the multiple of the total pooling below an extent, or the first one."""
    pooling = network.total_pooling
    return (Vec3.of(extent) // pooling).maximum(Vec3(1, 1, 1)) * pooling


@dataclass(frozen=True)
class BestPatch:
    """The patch and layout at which a CPU's peer is fastest, by times of parts.

    Attributes:
        patch: output voxels per axis.
        layout: by PyTorch's name.
        seconds: of a whole patch, estimated.
        tried: voxels per second by layout and extents of all that were tried.
    """

    patch: Vec3
    layout: str
    seconds: float
    tried: dict[str, float]


def best_patch(
    name: str, network: Network, threads: int, rivals: Rivals, budget: float, largest: int
) -> BestPatch:
    """Try patches from the largest that fits to small ones, in each layout, until the budget ends.

    The first is often the best, because the share that a patch wastes on its borders shrinks with
    its size.

    Args:
        name: of the peer.
        network: what to run.
        threads: PyTorch's.
        rivals: the settings to try.
        budget: seconds, shared by the layouts, after which no further patch is tried. Each layout
            tries two at least.
        largest: extent of a patch that makes sense.

    Raises:
        ChildFailed: the peer failed, or none of the patches fits.
    """
    extents = [extent for extent in rivals.extents if extent <= largest] or [min(rivals.extents)]
    patches = sorted({rounded(network, extent) for extent in extents}, reverse=True)
    share = budget / len(rivals.layouts)
    seconds = {
        (layout, patch): taken
        for layout in rivals.layouts
        for patch, taken in _sweep(
            partial(start, name, network, layout, threads, rivals.ram), patches, rivals.ram, share
        )
    }
    if not seconds:
        raise ChildFailed(f"no patch of {patches[-1]} or more fits {in_units(rivals.ram)}")
    layout, patch = min(seconds, key=lambda key: seconds[key] / key[1].volume)
    tried = {f"{key[0]} {key[1]}": key[1].volume / taken for key, taken in seconds.items()}
    return BestPatch(patch, layout, seconds[layout, patch], tried)


def _sweep(
    make: Callable[[], Child], patches: list[Vec3], ram: int, budget: float
) -> Iterator[tuple[Vec3, float]]:
    """Yield patches and their estimated seconds."""
    with make() as child:
        fitting = [patch for patch in patches if child.call("needed_bytes", patch) <= ram]
        begin = perf_counter()
        for tried, patch in enumerate(fitting):
            if tried >= LEAST_TRIED and perf_counter() - begin > budget:
                break
            yield patch, child.call("estimate", patch, SWEEP_FLOPS, SWEEP_REPEATS)


@dataclass(frozen=True)
class Try:
    """A setting of PyTorch that was measured on a GPU.

    Attributes:
        layout: by PyTorch's name.
        patch: output voxels per axis.
        seconds: of a patch, scaled from one of the first pool's fragments; None if it failed.
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
        """Output voxels per second; 0 if it failed."""
        return 0.0 if self.seconds is None else self.patch.volume / self.seconds


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
    begin = perf_counter()
    tries = [attempt(layout, patches[0]) for layout in layouts]
    layout = max(tries, key=lambda t: t.voxels_per_second).layout
    for patch in patches[1:]:
        if perf_counter() - begin > budget:
            break
        tries.append(attempt(layout, patch))
    tries.sort(key=lambda t: t.voxels_per_second, reverse=True)
    return tries, perf_counter() - begin
