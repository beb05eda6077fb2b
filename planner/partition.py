"""Where a network may pass from the host to a GPU, and what each then has to compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from znni.core.options import DeviceChoice
from znni.core.shapes import Shape5
from znni.machine.machine import DeviceKind, Processors
from znni.network.network import INPUT, Network, Node

# What computes layers: the host, a GPU, or the host with primitives that compute on a GPU, too.
Processor: TypeAlias = Literal["cpu", "gpu", "host using gpu"]


@dataclass(frozen=True)
class Partition:
    """Layers that follow each other on one device, for patches of one size.

    Attributes:
        device: which.
        nodes: the layers with their inputs, first to last.
        given: the tensor that they take of a patch.
        handed: the tensor that they hand on to a GPU, if they do.
        uses_gpu: whether they are on the host and may compute on the GPU.
    """

    device: DeviceKind
    nodes: tuple[Node, ...]
    given: Shape5
    handed: Shape5 | None
    uses_gpu: bool = False

    @property
    def means(self) -> Processor:
        """What they are computed with."""
        return "host using gpu" if self.uses_gpu else self.device


@dataclass(frozen=True)
class Cut:
    """Where patches of one size pass from the host to a GPU, if there is anything on either.

    Attributes:
        stretches: the layers on the host, if there are any, and then those on the GPU.
    """

    partitions: tuple[Partition, ...]

    @property
    def host_uses_gpu(self) -> bool:
        """Whether layers on the host may compute on the GPU.

        They do not do so while it is at its own: the two sides take turns.
        """
        return self.partitions[0].uses_gpu

    @property
    def device(self) -> Processors:
        """What computes the layers."""
        both = len(self.partitions) > 1 or self.host_uses_gpu
        return "cpu+gpu" if both else self.partitions[0].device

    @property
    def brought(self) -> int:
        """Bytes of a patch that are brought to the GPU."""
        last = self.partitions[-1]
        return last.given.nbytes if last.device == "gpu" else 0

    @property
    def handed(self) -> int:
        """Of these, what the host's layers hand on."""
        return self.brought if len(self.partitions) > 1 else 0


class CutPoint(NamedTuple):
    """Where a network passes from the host to a GPU.

    Attributes:
        on_host: after how many layers.
        host_uses_gpu: whether these may compute on the GPU.
    """

    on_host: int
    host_uses_gpu: bool = False


def cut_points_using_gpu(network: Network, device: DeviceChoice) -> list[int]:
    """Return the numbers of first layers that may be on a host that computes on the GPU, too."""
    return _cuts(network)[1:] if device in ("auto", "cpu+gpu") else []


def cut_points(network: Network, device: DeviceChoice) -> list[int]:
    """Return the numbers of first layers that a plan may have on the host."""
    cuts = _cuts(network)
    match device:
        case "auto":
            return cuts
        case "cpu":
            return cuts[-1:]
        case "gpu":
            return cuts[:1]
        case "cpu+gpu":
            return cuts[1:-1]


def _cuts(network: Network) -> list[int]:
    """Return the numbers of first layers after which a single value is alive, to be handed on."""
    return [count for count, alive in enumerate(network.alive) if len(alive) == 1]


def cut(
    network: Network, shapes: Mapping[str, Shape5], place: int, *, host_uses_gpu: bool = False
) -> Cut:
    """Return the layers on each device of a network that passes to the GPU at a cut point.

    Args:
        network: what is computed.
        shapes: the network's ``shapes`` for a patch.
        place: the number of first layers that are on the host.
        host_uses_gpu: whether these may compute on the GPU.
    """
    first, others = network.nodes[:place], network.nodes[place:]
    (passed,) = network.alive[place]
    handed = shapes[passed] if others else None
    on_host = Partition("cpu", first, shapes[INPUT], handed, host_uses_gpu)
    on_gpu = Partition("gpu", others, shapes[passed], None)
    return Cut(tuple(partition for partition in (on_host, on_gpu) if partition.nodes))
