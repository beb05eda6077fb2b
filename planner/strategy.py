"""Where a network may pass from the host to a GPU, and what each then has to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from znni.machine import DeviceKind, Processors
from znni.network import Conv, Layer, Network
from znni.options import DeviceChoice
from znni.shapes import Shape5, Vec3


@dataclass(frozen=True)
class Stretch:
    """Layers that follow each other on one device, for patches of one size.

    Attributes:
        device: which.
        first: how many layers of the network come before.
        layers: first to last.
        given: the tensor that they take of a patch.
        handed: the tensor that they hand on to a GPU, if they do.
    """

    device: DeviceKind
    first: int
    layers: tuple[Layer, ...]
    given: Shape5
    handed: Shape5 | None


@dataclass(frozen=True)
class Cut:
    """Where patches of one size pass from the host to a GPU, if there is anything on either.

    Attributes:
        stretches: the layers on the host, if there are any, and then those on the GPU.
    """

    stretches: tuple[Stretch, ...]

    @property
    def device(self) -> Processors:
        """Where the layers are."""
        return "cpu+gpu" if len(self.stretches) > 1 else self.stretches[0].device

    @property
    def brought(self) -> int:
        """Bytes of a patch that are brought to the GPU."""
        last = self.stretches[-1]
        return last.given.nbytes if last.device == "gpu" else 0

    @property
    def handed(self) -> int:
        """Of these, what the host's layers hand on."""
        return self.brought if self.device == "cpu+gpu" else 0


def places_to_cut(network: Network, device: DeviceChoice) -> range:
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


def cut(network: Network, between: Sequence[Shape5], place: int) -> Cut:
    """A network that passes to the GPU at a place.

    Args:
        network: which.
        between: the ``tensors`` of a patch.
        place: how many layers are on the host.
    """
    first, others = network.layers[:place], network.layers[place:]
    handed = between[place] if others else None
    on_host = Stretch("cpu", 0, first, between[0], handed)
    on_gpu = Stretch("gpu", place, others, between[place], None)
    return Cut(tuple(stretch for stretch in (on_host, on_gpu) if stretch.layers))


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
