"""Where a network may pass from the host to a GPU, and what each then has to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from znni.core.options import DeviceChoice
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import DeviceKind, Processors
from znni.network.network import Conv, Layer, Network

# What computes layers: the host, a GPU, or the host with primitives that compute on a GPU, too.
Processor: TypeAlias = Literal["cpu", "gpu", "host using gpu"]


@dataclass(frozen=True)
class Partition:
    """Layers that follow each other on one device, for patches of one size.

    Attributes:
        device: which.
        layers: first to last.
        given: the tensor that they take of a patch.
        handed: the tensor that they hand on to a GPU, if they do.
        uses_gpu: whether they are on the host and may compute on the GPU.
    """

    device: DeviceKind
    layers: tuple[Layer, ...]
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


def cut_points_using_gpu(network: Network, device: DeviceChoice) -> range:
    """After how many layers it may do so where those on the host may compute on the GPU."""
    return range(1, len(network.layers) + 1) if device in ("auto", "cpu+gpu") else range(0)


def cut_points(network: Network, device: DeviceChoice) -> range:
    """After how many layers a plan may pass from the host to a GPU."""
    layers = len(network.layers)
    match device:
        case "auto":
            return range(layers + 1)
        case "cpu":
            return range(layers, layers + 1)
        case "gpu":
            return range(1)
        case "cpu+gpu":
            return range(1, layers)


def cut(
    network: Network, between: Sequence[Shape5], place: int, *, host_uses_gpu: bool = False
) -> Cut:
    """A network that passes to the GPU at a place.

    Args:
        network: which.
        between: the ``tensors`` of a patch.
        place: how many layers are on the host.
        host_uses_gpu: whether these may compute on the GPU.
    """
    first, others = network.layers[:place], network.layers[place:]
    handed = between[place] if others else None
    on_host = Partition("cpu", first, between[0], handed, host_uses_gpu)
    on_gpu = Partition("gpu", others, between[place], None)
    return Cut(tuple(partition for partition in (on_host, on_gpu) if partition.layers))


def tensors(network: Network, patch: Vec3) -> list[Shape5]:
    """All fragments of a patch of so many output voxels, before the first layer and after each."""
    size, batch, features = patch + network.field_of_view - 1, 1, network.in_features
    shapes = [Shape5.of(batch, features, size)]
    for layer in network.layers:
        if isinstance(layer, Conv):
            size, features = size - layer.kernel + 1, layer.out_features
        else:
            size, batch = size // layer.window, batch * layer.window.volume
        shapes.append(Shape5.of(batch, features, size))
    return shapes
