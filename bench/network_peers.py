"""The peers for whole networks, each in a process of its own, at the patch that suits it best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from bench.child import Child, ChildFailed
from bench.torch_settings import ENVIRONMENT, TYPES, has_torch
from znni.errors import InvalidInput
from znni.network import Network
from znni.shapes import Vec3
from znni.units import in_units

# Output voxels per axis that are tried.
EXTENTS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384)

# Operations of a layer that are timed when patches are compared: a tenth of a second or less.
SWEEP_FLOPS = 2e10


def _fragments(network: Network, dtype: str, threads: int, ram: int) -> Any:
    from bench.torch_fragments import TorchFragments

    return TorchFragments(network, dtype, threads, ram)


def _dilated(network: Network, dtype: str, threads: int, _ram: int) -> Any:
    from bench.torch_dilated import TorchDilated

    return TorchDilated(network, dtype, threads)


def _monai(network: Network, dtype: str, threads: int, _ram: int) -> Any:
    from bench.monai_window import MonaiWindows

    return MonaiWindows(network, dtype, threads)


# How each is made in its process, and the type that it computes in.
PEERS: dict[str, tuple[Callable[[Network, str, int, int], Any], str]] = {
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


def missing(name: str) -> str | None:
    """Why a peer cannot run here, if it cannot."""
    if not has_torch():
        return "PyTorch is not installed: pip install 'znni[peers]'"
    if name.startswith("monai") and find_spec("monai") is None:
        return "MONAI is not installed: pip install 'znni[peers]'"
    return None


def start(name: str, network: Network, threads: int, ram: int) -> Child:
    """A peer in a new process, for patches whose arrays fit ``ram`` bytes.

    The process has the memory settings that suit PyTorch.
    """
    make, dtype = PEERS[name]
    return Child(make, network, dtype, threads, ram, environment=ENVIRONMENT)


@dataclass(frozen=True)
class BestPatch:
    """The patch at which a peer is fastest, by times of parts.

    Attributes:
        patch: output voxels per axis.
        seconds: of a whole patch, estimated.
        tried: voxels per second by extent of all that were tried.
    """

    patch: Vec3
    seconds: float
    tried: dict[str, float]


def best_patch(
    name: str, network: Network, threads: int, ram: int, budget: float, extents: tuple[int, ...]
) -> BestPatch:
    """Try patches from the largest that fits to small ones, until the budget ends.

    What a patch wastes on its borders shrinks with its size, so the first is often the best.

    Args:
        name: of the peer.
        network: what to run.
        threads: PyTorch's.
        ram: bytes that a patch's arrays may take.
        budget: seconds after which no further patch is tried, once one has been.
        extents: output voxels per axis, rounded to multiples of the total pooling.

    Raises:
        ChildFailed: the peer failed, or none of the patches fits.
    """
    patches = sorted({_rounded(network, extent) for extent in extents}, reverse=True)
    seconds: dict[Vec3, float] = {}
    with start(name, network, threads, ram) as child:
        begin = perf_counter()
        for patch in patches:
            if child.call("needed_bytes", patch) > ram:
                continue
            if seconds and perf_counter() - begin > budget:
                break
            seconds[patch] = child.call("estimate", patch, SWEEP_FLOPS)
    if not seconds:
        raise ChildFailed(f"no patch of {patches[-1]} or more fits {in_units(ram)}")
    best = min(seconds, key=lambda patch: seconds[patch] / patch.volume)
    tried = {str(patch): patch.volume / taken for patch, taken in seconds.items()}
    return BestPatch(best, seconds[best], tried)


def _rounded(network: Network, extent: int) -> Vec3:
    return (Vec3.of(extent) // network.total_pooling).maximum(Vec3(1, 1, 1)) * network.total_pooling
