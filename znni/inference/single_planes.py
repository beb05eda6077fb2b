"""Single planes that are given as volumes, although they are the slices of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.network.network import Network
from znni.volumes.formats.slices.files import is_slice
from znni.volumes.locate import open_volume, split_dataset
from znni.volumes.stored import is_url


def refuse_slices(sources: Sequence[str | Path], network: Network) -> None:
    """Refuse single planes of one folder if the network sees several planes at once.

    Only the first file is opened.

    Raises:
        InvalidInput: they look like the slices of one volume.
    """
    places = [Path(split_dataset(str(source))[0]) for source in sources]
    folder = places[0].parent
    alike = all(place.parent == folder and is_slice(place.name) for place in places)
    if len(places) == 1 or not alike or is_url(str(sources[0])) or _sees_one_plane(network):
        return
    try:
        planes = open_volume(sources[0]).size.z
    except InvalidInput:
        return  # the run over this file says so
    if planes == 1:
        raise InvalidInput(
            f"{places[0]} has one plane, and network {network.name} sees several at once; if "
            f"these {len(places)} files are the slices of one volume, give their folder instead, "
            f"{folder}/"
        )


def _sees_one_plane(network: Network) -> bool:
    """Return whether no layer joins planes."""
    if network.window:
        return network.window.size.z == 1
    reached = (
        getattr(layer, name).z
        for layer in network.layers
        for name in ("kernel", "window")
        if getattr(layer, name, None) is not None
    )
    return not network.window_layer and max(reached, default=1) == 1
