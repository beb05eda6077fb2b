"""What an output was computed from, opened again and held to what it tells."""

from __future__ import annotations

from pathlib import Path

from znni.engine.checks import check_features
from znni.engine.skipping import check_mask
from znni.errors import InvalidInput, option
from znni.origin import Origin
from znni.shapes import Box, Vec3
from znni.units import counted
from znni.volume import Volume
from znni.volumes.array import ArrayLike
from znni.volumes.fingerprint import fingerprint
from znni.volumes.ledger import Ledger
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume
from znni.weights import Weights, weights_again, weights_for


def input_of(
    origin: Origin,
    output: StoredVolume,
    ledger: Ledger,
    given: str | Path | ArrayLike | None,
) -> Volume:
    """The volume that an output was computed from."""
    recorded = origin.attributes
    source = recorded.source if given is None else given
    if given is None and _was_array(source, ledger, "the input"):
        raise InvalidInput(
            f"{output.name} was computed from an array in memory, of type {source}; give it, or a "
            f"file of it, as {option('source', 'FILE')}"
        )
    try:
        volume = open_volume(source, (recorded.dataset or None) if given is None else None)
        check_features(volume, origin.network)
    except InvalidInput as error:
        raise InvalidInput(
            f"{error}; {output.name} was computed from {recorded.source}: if that lies elsewhere, "
            f"give {option('source', 'FILE')}"
        ) from None
    features, offset = origin.network.out_features, Vec3(*recorded.voxel_offset)
    whole = Box(Vec3(0, 0, 0), volume.size)
    if volume.size != recorded.source_extents:
        raise InvalidInput(
            f"the input is {volume.size} voxels, and {output.name} was computed from one of "
            f"{Vec3(*recorded.source_extents)}; give that, as {option('source', 'FILE')}"
        )
    if output.features != features or not Box(offset, offset + output.size).within(whole):
        raise InvalidInput(
            f"{output.name} has {counted(output.features, 'map')} of {output.size} from voxel "
            f"{offset} of a volume of {volume.size}, which network {origin.network.name} does not "
            f"give; compute it again"
        )
    _check_marks(origin, output, ledger, source, volume)
    return volume


def _check_marks(
    origin: Origin,
    output: StoredVolume,
    ledger: Ledger,
    source: str | Path | ArrayLike,
    volume: Volume,
) -> None:
    """Refuse an input whose marks are not those that the ledger has, whenever it was written."""
    view = origin.network.field_of_view
    start = Vec3(*origin.attributes.voxel_offset) - (view - 1) // 2
    seen = Box(start, start + output.size + view - 1)
    whole = Box(Vec3(0, 0, 0), volume.size)
    marks = fingerprint(source, volume, seen.intersection(whole) or whole)
    if marks.keys() != {name for name in ledger.identity if name.startswith("the input's ")}:
        return  # a file then and an array now, say, which have other marks
    for name, mark in marks.items():
        if ledger.identity[name] != mark and not name.endswith("time of change"):
            raise InvalidInput(
                f"{output.name} was computed from another input, or this one has changed since: "
                f"{name} ({ledger.identity[name]} then, {mark} now); give that one, as "
                f"{option('source', 'FILE')}"
            )


def _was_array(recorded: str | Path | ArrayLike, ledger: Ledger, name: str) -> bool:
    """Whether what was recorded of a volume is the type of an array, and no path.

    Files have marks that arrays do not, and folders are Zarrs, whose names have an ending.
    """
    marked = f"{name}'s length in bytes" in ledger.identity
    return not marked and str(recorded).isidentifier()


def mask_of(
    origin: Origin,
    output: StoredVolume,
    ledger: Ledger,
    volume: Volume,
    given: str | Path | ArrayLike | None,
) -> Volume | None:
    """The mask that an output was computed with."""
    recorded = origin.attributes.mask
    if not recorded:
        if given is not None:
            raise InvalidInput(f"{output.name} was computed without a mask; leave it out")
        return None
    if given is None and _was_array(recorded, ledger, "the mask"):
        raise InvalidInput(
            f"{output.name} was computed with a mask in memory, of type {recorded}; give it, or a "
            f"file of it, as {option('mask', 'FILE')}"
        )
    try:
        mask = open_volume(recorded if given is None else given)
    except InvalidInput as error:
        raise InvalidInput(
            f"{error}; {output.name} was computed with the mask {recorded}: if that lies "
            f"elsewhere, give {option('mask', 'FILE')}"
        ) from None
    check_mask(mask, volume)
    return mask


def weights_of(origin: Origin, output: StoredVolume, given: Weights | str | Path | None) -> Weights:
    """The weights that an output was computed with."""
    recorded, network = origin.attributes, origin.network
    elsewhere = f"if they lie elsewhere, give {option('weights', 'FILE')}"
    try:
        if given is None:
            found = weights_again(recorded.weights, network)
        else:
            found = weights_for(network, given, None)
    except InvalidInput as error:
        raise InvalidInput(f"{error}; {elsewhere}") from None
    if found.sha256 != recorded.weights_sha256:
        raise InvalidInput(
            f"{output.name} was computed with other weights than those of {found.source}: their "
            f"SHA-256 is {recorded.weights_sha256[:12]}..., and these have "
            f"{found.sha256[:12]}...; {elsewhere}"
        )
    return found
