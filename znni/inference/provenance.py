"""Where an output comes from: its input, network, weights and mask, noted and opened again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from znni.core.errors import InvalidInput, option
from znni.core.options import Accuracy, Border, Pad
from znni.core.shapes import Box, Vec3
from znni.core.text import counted
from znni.core.volume import Volume
from znni.engine.checks import check_features
from znni.engine.skipping import check_mask
from znni.inference.request import Request
from znni.network.network import Network
from znni.network.network_file import network_from_text, network_text
from znni.network.weights import Weights, weights_again, weights_for
from znni.volumes.array import ArrayLike
from znni.volumes.fingerprint import fingerprint
from znni.volumes.ledger import Ledger
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume


class Attributes(BaseModel):
    """The attributes by their names.

    Attributes:
        source: of the input: its file or URL, or the type of the array that it was.
        dataset: of a file with several; empty if none was named.
        mask: as ``source``; empty if there was none.
        source_extents: of the input, in voxels (z, y, x).
        network_file: the network as the text of a network file.
        weights: their file, or how they were drawn.
        weights_sha256: hash of their values.
        border: ``valid`` or ``same``.
        pad: what is seen beyond the edges with ``same``.
        roi: the input voxels that have output.
        voxel_offset: the input voxel that the first output voxel stands for.
        scale: times a stored value is what the network gave.
        accuracy: the class of the least accurate primitive that was used.
    """

    model_config = ConfigDict(extra="ignore")

    source: str
    dataset: str
    mask: str
    source_extents: tuple[int, int, int]
    network_file: str
    weights: str
    weights_sha256: str
    border: Border
    pad: Pad
    roi: str
    voxel_offset: tuple[int, int, int]
    scale: float
    accuracy: Accuracy


@dataclass(frozen=True)
class Origin:
    """The same, read back.

    Attributes:
        attributes: as stored.
        network: what was computed.
    """

    attributes: Attributes
    network: Network


def origin_attributes(
    asked: Request, network: Network, weights: Weights, accuracy: Accuracy
) -> dict[str, Any]:
    """What an output is computed from, for its attributes.

    Args:
        asked: what the run is asked for.
        network: as its plan has it.
        weights: its parameters.
        accuracy: the class of the plan.
    """
    job, mask = asked.job, asked.mask_source
    return Attributes(
        source=_named(asked.source),
        dataset=asked.dataset or "",
        mask=_named(mask) if mask is not None else "",
        source_extents=job.volume,
        network_file=network_text(network),
        weights=weights.source,
        weights_sha256=weights.sha256,
        border=asked.border,
        pad=job.pad,
        roi=str(Box(job.center, job.center + job.output)),
        voxel_offset=job.center,
        scale=1 / 255 if asked.wanted.dtype == "uint8" else 1.0,
        accuracy=accuracy,
    ).model_dump()


def origin_of(output: StoredVolume) -> Origin:
    """Read back what an output was computed from.

    Raises:
        InvalidInput: an attribute is missing or cannot be read, as of what no run has written.
    """
    found: dict[str, Any] = {}
    for key in Attributes.model_fields:
        value = output.attribute(key)
        if value is not None:
            found[key] = value.tolist() if hasattr(value, "tolist") else value
    try:
        attributes = Attributes.model_validate(found)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        if key in found:
            wrong = f"its attribute {key!r} is {shortened(found[key])}, which no run has written"
        else:
            wrong = f"has no attribute {key!r}, so that nothing tells how it was computed"
        raise InvalidInput(f"{output.name}: {wrong}; give an output of znni infer") from None
    where = f"{output.name}, attribute network_file"
    return Origin(attributes, network_from_text(attributes.network_file, where))


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


def _named(volume: object) -> str:
    return str(volume) if isinstance(volume, str | Path) else type(volume).__name__


def _was_array(recorded: str | Path | ArrayLike, ledger: Ledger, name: str) -> bool:
    """Whether what was recorded of a volume is the type of an array, and no path.

    Files have marks that arrays do not, and folders are Zarrs, whose names have an ending.
    """
    marked = f"{name}'s length in bytes" in ledger.identity
    return not marked and str(recorded).isidentifier()


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
