"""The peers for whole networks, each in a process of its own, at the patch that suits it best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from bench.child import Child, ChildFailed
from bench.torch_settings import ENVIRONMENT, LAYOUTS, TYPES, has_torch
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.text import in_units
from znni.network.network import Network

# What the peers compute after a convolution.
ACTIVATIONS = ("relu", "identity")

# Output voxels per axis that are tried.
EXTENTS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 512)

# Operations of a layer that are timed when patches are compared: some tenths of a second. One
# plane of the output, the least that is computed, may have more.
SWEEP_FLOPS = 2e10
SWEEP_REPEATS = 1

# Patches that are tried in each layout, however long that takes.
LEAST_TRIED = 2


def _fragments(network: Network, dtype: str, layout: str, threads: int, ram: int) -> Any:
    from bench.torch_fragments import TorchFragments

    return TorchFragments(network, dtype, layout, threads, ram)


def _dilated(network: Network, dtype: str, layout: str, threads: int, _ram: int) -> Any:
    from bench.torch_dilated import TorchDilated

    return TorchDilated(network, dtype, layout, threads)


def _monai(network: Network, dtype: str, layout: str, threads: int, _ram: int) -> Any:
    from bench.monai_window import MonaiWindows

    return MonaiWindows(network, dtype, layout, threads)


# How each is made in its process, and the type that it computes in.
PEERS: dict[str, tuple[Callable[[Network, str, str, int, int], Any], str]] = {
    "torch_fp32": (_fragments, TYPES["fp32"]),
    "torch_bf16": (_fragments, TYPES["bf16"]),
    "dilated_fp32": (_dilated, TYPES["fp32"]),
    "monai_fp32": (_monai, TYPES["fp32"]),
}


def check_peers(names: list[str]) -> list[str]:
    """The peers asked for, or all.

    Raises:
        InvalidInput: a name that is none of theirs.
    """
    for name in names:
        if name not in PEERS:
            raise InvalidInput(f"--peer {name} is unknown; choose from {', '.join(PEERS)}")
    return names or list(PEERS)


def missing(name: str, network: Network) -> str | None:
    """Why a peer cannot run a network here, if it cannot."""
    for conv in network.convolutions:
        if conv.activation not in ACTIVATIONS:
            return f"PyTorch's peers have no {conv.activation}, which {conv.name} uses"
    if not has_torch():
        return "PyTorch is not installed: pip install -e '.[peers]'"
    if name.startswith("monai") and find_spec("monai") is None:
        return "MONAI is not installed: pip install -e '.[peers]'"
    return None


def start(name: str, network: Network, layout: str, threads: int, ram: int) -> Child:
    """A peer in a new process, for patches whose arrays fit ``ram`` bytes.

    The process has the memory settings that suit PyTorch.
    """
    make, dtype = PEERS[name]
    return Child(make, network, dtype, layout, threads, ram, environment=ENVIRONMENT)


@dataclass(frozen=True)
class BestPatch:
    """The patch and layout at which a peer is fastest, by times of parts.

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
    name: str, network: Network, threads: int, ram: int, budget: float, extents: tuple[int, ...]
) -> BestPatch:
    """Try patches from the largest that fits to small ones, in each layout, until the budget ends.

    What a patch wastes on its borders shrinks with its size, so the first is often the best.

    Args:
        name: of the peer.
        network: what to run.
        threads: PyTorch's.
        ram: bytes that a patch's arrays may take.
        budget: seconds, shared by the layouts, after which no further patch is tried; each tries
            two at least.
        extents: output voxels per axis, rounded to multiples of the total pooling.

    Raises:
        ChildFailed: the peer failed, or none of the patches fits.
    """
    patches = sorted({_rounded(network, extent) for extent in extents}, reverse=True)
    seconds = {
        (layout, patch): taken
        for layout in LAYOUTS
        for patch, taken in _sweep(
            partial(start, name, network, layout, threads, ram), patches, ram, budget / len(LAYOUTS)
        )
    }
    if not seconds:
        raise ChildFailed(f"no patch of {patches[-1]} or more fits {in_units(ram)}")
    layout, patch = min(seconds, key=lambda key: seconds[key] / key[1].volume)
    tried = {f"{key[0]} {key[1]}": key[1].volume / taken for key, taken in seconds.items()}
    return BestPatch(patch, layout, seconds[layout, patch], tried)


def _sweep(
    make: Callable[[], Child], patches: list[Vec3], ram: int, budget: float
) -> Iterator[tuple[Vec3, float]]:
    """Patches and their estimated seconds."""
    with make() as child:
        fitting = [patch for patch in patches if child.call("needed_bytes", patch) <= ram]
        begin = perf_counter()
        for tried, patch in enumerate(fitting):
            if tried >= LEAST_TRIED and perf_counter() - begin > budget:
                break
            yield patch, child.call("estimate", patch, SWEEP_FLOPS, SWEEP_REPEATS)


def _rounded(network: Network, extent: int) -> Vec3:
    return (Vec3.of(extent) // network.total_pooling).maximum(Vec3(1, 1, 1)) * network.total_pooling
