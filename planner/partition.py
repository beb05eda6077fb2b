"""Cut points, where a network may pass from the host to a GPU, and the layers on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias

from znni.core.processors import (
    FASTEST,
    GPU,
    HOST,
    HOST_AND_GPU,
    DeviceChoice,
    DeviceKind,
    Processors,
    has_own_memory,
    may_use_gpu,
    may_use_host,
)
from znni.core.shapes import Shape5
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.plans.block_storage import BlockStorage
from znni.plans.swept import Swept
from znni.plans.totals import Number

# The processor that computes layers: the host, a GPU, or the host with primitives that also compute
# on a GPU.
Processor: TypeAlias = Literal[DeviceKind, "host using gpu"]
HOST_USING_GPU: Final = "host using gpu"


def device_of(processor: Processor) -> DeviceKind:
    """Return the device whose memory holds the arrays of layers on a processor."""
    return HOST if processor == HOST_USING_GPU else processor


@dataclass(frozen=True)
class Partition:
    """Consecutive layers on one device, for patches of one size.

    Attributes:
        device: the device.
        nodes: the layers with their inputs, first to last.
        input_shape: the shape of the tensor that they take for a patch.
        handed: the shape of the tensor that they hand on to a GPU, if they do.
        uses_gpu: whether they are on the host and may compute on the GPU.
        on_gpu: the GPU bytes that they may take then.
        storage: the arrays of a block, if the network is tiled.
        swept: the planes of a sweep, if there is one.
        least_kept: a lower bound on the bytes that the sweep keeps.
        least_runs: how often the sweep computes each value at least for a patch, by name.
        shapes: the shapes of the network's values for a patch, by name.
        least: lower bounds on the seconds of each layer, by name.
    """

    device: DeviceKind
    nodes: tuple[Node, ...]
    input_shape: Shape5
    handed: Shape5 | None
    uses_gpu: bool = False
    on_gpu: float = inf
    storage: BlockStorage | None = None
    swept: Swept | None = None
    least_kept: int = 0
    least_runs: Mapping[str, float] = field(default_factory=dict, compare=False)
    shapes: Mapping[str, Shape5] = field(default_factory=dict, compare=False)
    least: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def processor(self) -> Processor:
        """The processor that computes the layers."""
        return HOST_USING_GPU if self.uses_gpu else self.device


@dataclass(frozen=True)
class Cut:
    """A network cut into its layers on the host and its layers on a GPU, for patches of one size.

    Attributes:
        partitions: the layers on the host, if there are any, and then those on the GPU, if any.
    """

    partitions: tuple[Partition, ...]

    @property
    def host_uses_gpu(self) -> bool:
        """True if layers on the host may compute on the GPU.

        They never do so at the same time as the GPU's own layers: the two take turns.
        """
        return self.partitions[0].uses_gpu

    @property
    def device(self) -> Processors:
        """The processors that compute the layers."""
        both = len(self.partitions) > 1 or self.host_uses_gpu
        return HOST_AND_GPU if both else self.partitions[0].device

    @property
    def brought(self) -> int:
        """The bytes of a patch that are copied to the GPU."""
        last = self.partitions[-1]
        return last.input_shape.nbytes if has_own_memory(last.device) else 0

    @property
    def handed(self) -> int:
        """The bytes of a patch that the host's layers hand on to the GPU."""
        return self.brought if len(self.partitions) > 1 else 0


class CutPoint(NamedTuple):
    """A point where a network passes from the host to a GPU.

    Attributes:
        layers_on_host: the number of first layers that are on the host.
        host_uses_gpu: whether these layers may compute on the GPU.
    """

    layers_on_host: int
    host_uses_gpu: bool = False


def cut_points_using_gpu(network: Network, device: DeviceChoice) -> list[int]:
    """Return the numbers of first layers that may be on a host that also computes on the GPU."""
    if network.is_tiled or network.is_swept or not (may_use_host(device) and may_use_gpu(device)):
        return []
    return _cuts(network)[1:]


def cut_points(network: Network, device: DeviceChoice) -> list[int]:
    """Return the numbers of first layers that a plan may have on the host."""
    cuts = _cuts(network)
    if device == FASTEST:
        return cuts
    if device == HOST_AND_GPU:
        return cuts[1:-1]
    return cuts[-1:] if device == HOST else [count for count in cuts if count == 0]


def _cuts(network: Network) -> list[int]:
    """Return the numbers of first layers after which a single value is alive to be handed on.

    All layers of a tiled network, or of a sweep, are on one device.
    """
    if network.is_tiled or network.is_swept:
        return [0, len(network.nodes)]
    return [count for count, alive in enumerate(network.alive) if len(alive) == 1]


def sums_at_cuts(processor: Processor, seconds: Sequence[Number], nothing: Number) -> list[Number]:
    """Return the seconds of a processor's layers for each number of first layers on the host.

    On the host, the layers before the cut count. On a GPU, the layers after it count.

    Args:
        processor: the processor.
        seconds: the seconds of each layer, in order.
        nothing: the seconds of no layers.
    """
    if has_own_memory(device_of(processor)):
        return list(accumulate(reversed(seconds), initial=nothing))[::-1]
    return list(accumulate(seconds, initial=nothing))


def cut_network(
    network: Network,
    shapes: Mapping[str, Shape5],
    layers_on_host: int,
    *,
    host_uses_gpu: bool = False,
    storage: BlockStorage | None = None,
    swept: Swept | None = None,
) -> Cut:
    """Return the layers on each device of a network that passes to the GPU at a cut point.

    Args:
        network: the network to compute.
        shapes: the network's ``shapes`` for a patch.
        layers_on_host: the number of first layers that are on the host.
        host_uses_gpu: whether these layers may compute on the GPU.
        storage: the arrays of a block, if the network is tiled.
        swept: the planes of a sweep, if there is one.
    """
    on_host, on_gpu = network.nodes[:layers_on_host], network.nodes[layers_on_host:]
    (passed,) = network.alive[layers_on_host]
    handed = shapes[passed] if on_gpu else None
    brought = swept.brought(shapes[passed]) if swept else shapes[passed]
    partitions = (
        Partition(
            HOST, on_host, shapes[INPUT], handed, host_uses_gpu, storage=storage, swept=swept
        ),
        Partition(GPU, on_gpu, brought, None, storage=storage, swept=swept),
    )
    return Cut(tuple(partition for partition in partitions if partition.nodes))
