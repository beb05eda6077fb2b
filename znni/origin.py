"""What an output was computed from, as its attributes tell: enough to compute any voxel again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from znni.errors import InvalidInput
from znni.network import Network
from znni.network_file import network_from_text, network_text
from znni.options import Accuracy, Border, Pad
from znni.request import Request
from znni.shapes import Box
from znni.volumes.stored import StoredVolume
from znni.weights import Weights


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


def _named(volume: object) -> str:
    return str(volume) if isinstance(volume, str | Path) else type(volume).__name__


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
