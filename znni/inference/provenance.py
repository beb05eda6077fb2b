"""Provenance of an output: its input, network, weights and mask, recorded and opened again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, option
from znni.core.option_types import Accuracy, Border, Pad
from znni.core.run_options import InputOptions, parse_time
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.text import counted
from znni.core.volume import Volume
from znni.engine.checks import check_features
from znni.engine.labels import Labels, labels_from
from znni.engine.mask import check_mask
from znni.engine.tiles import make_job, seen_by
from znni.inference.request import OpenRequest, open_input
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import network_from_text
from znni.network.weights import Weights, weights_again, weights_for
from znni.volumes.fingerprint import fingerprint
from znni.volumes.identity import then_and_now
from znni.volumes.ledger_entries import Ledger
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume

NUMBER = r"^\d*$"


class Attributes(BaseModel):
    """Attributes that an output stores about its provenance, by their names.

    Attributes:
        source: file or URL of the input, or the type of the array that was given.
        dataset: dataset in an input file that has several; empty if none was named.
        channel: number of the only map of the input that was read; empty: all were.
        time: number of the point in time; empty: there was one only.
        invert: whether light and dark were exchanged.
        mask: file, URL or array type of the mask, as in ``source``; empty if there was none.
        source_extents: extents of the input, in voxels (z, y, x).
        network_file: the network as the text of a network file.
        weights: file of the weights, or how they were drawn at random.
        weights_sha256: hash of the weights' values.
        border: ``valid`` or ``same``.
        pad: values beyond the edges with ``same``.
        roi: the input voxels that have output.
        voxel_offset: the input voxel that the first output voxel stands for.
        scale: factor from a stored value to the network's value.
        labels: the labels of the maps by name, as JSON; empty if values are not labels of maps.
        threshold: above which a voxel has 1; empty if there was none.
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
    channel: str = Field("", pattern=NUMBER)
    time: str = Field("", pattern=rf"{NUMBER}|^all$")
    invert: bool = False
    labels: str = ""
    threshold: str = ""

    def read(self, *, of_record: bool = True) -> InputOptions:
        """Return what of the input was read.

        Args:
            of_record: whether the file is the recorded one; another may name its dataset otherwise.
        """
        return InputOptions(
            (self.dataset or None) if of_record else None,
            int(self.channel) if self.channel else None,
            parse_time(self.time) if self.time else None,
            self.invert,
        )


@dataclass(frozen=True)
class Origin:
    """Provenance read back from an output.

    Attributes:
        attributes: the stored attributes.
        network: the network that was computed.
    """

    attributes: Attributes
    network: Network

    @property
    def labels(self) -> Labels | None:
        """The rule by which values became labels; None if they stayed values."""
        return labels_from(self.attributes.labels, self.attributes.threshold)


def origin_attributes(
    asked: OpenRequest, network: Network, weights: Weights, accuracy: Accuracy
) -> dict[str, Any]:
    """Return the attributes that record how an output is computed, those of ``Attributes``.

    Args:
        asked: the request for the run.
        network: the network of the plan.
        weights: parameters of the network.
        accuracy: the accuracy class of the plan.
    """
    job, request = asked.job, asked.request
    read, mask = request.options.read, asked.region.mask
    attributes = {
        "source": _named(request.source),
        "dataset": read.dataset or "",
        "mask": _named(mask) if mask is not None else "",
        "source_extents": tuple(job.volume),
        "network_file": network_text(network),
        "weights": weights.source,
        "weights_sha256": weights.sha256,
        "border": asked.region.border,
        "pad": job.pad,
        "roi": str(Box(job.center, job.center + job.output)),
        "voxel_offset": tuple(job.center),
        "scale": 1 / 255 if asked.stored.dtype == "uint8" else 1.0,
        "accuracy": accuracy,
        "channel": "" if read.channel is None else str(read.channel),
        "time": "" if read.time is None else str(read.time),
        "invert": bool(read.invert),
        "labels": "",
        "threshold": "",
    }
    return attributes | (asked.labels.attributes(network) if asked.labels else {})


def origin_of(output: StoredVolume) -> Origin:
    """Read back how an output was computed.

    Raises:
        InvalidInput: an attribute is missing or cannot be read, so that no run of znni wrote the
            output.
    """
    texts: dict[str, Any] = {}
    for key in Attributes.model_fields:
        value = output.attribute(key)
        if value is not None:
            texts[key] = value.tolist() if hasattr(value, "tolist") else value
    try:
        attributes = Attributes.model_validate(texts)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        if key in texts:
            wrong = f"its attribute {key!r} is {shortened(texts[key])}, which no run has written"
        else:
            wrong = f"has no attribute {key!r}, so it is unknown how it was computed"
        remedy = "give an output of znni infer"
        if output.name.endswith(".npy"):
            remedy = "a .npy file holds no attributes, so give an output in another format"
        raise InvalidInput(f"{output.name}: {wrong}; {remedy}") from None
    where = f"{output.name}, attribute network_file"
    return Origin(attributes, network_from_text(attributes.network_file, where))


def input_of(
    origin: Origin, output: StoredVolume, ledger: Ledger, replacement: str | Path | ArrayLike | None
) -> Volume:
    """Open the volume that an output was computed from."""
    recorded = origin.attributes
    source = recorded.source if replacement is None else replacement
    if replacement is None and _was_array(source, ledger, "the input"):
        raise InvalidInput(
            f"{output.name} was computed from an array in memory, of type {source}; give it, or a "
            f"file of it, as {option('source', 'FILE')}"
        )
    try:
        volume = open_input(recorded.read(of_record=replacement is None), source)
        check_features(volume, origin.network)
    except InvalidInput as error:
        raise InvalidInput(
            f"{error}; {output.name} was computed from {recorded.source}: if that lies elsewhere, "
            f"give {option('source', 'FILE')}"
        ) from None
    features, offset = origin.network.out_features, Vec3(*recorded.voxel_offset)
    features = origin.labels.features(features) if origin.labels else features
    window = origin.network.window
    extents = window.over(volume.size).output if window else volume.size
    whole = Box(ZERO, extents)
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
    replacement: str | Path | ArrayLike | None,
) -> Volume | None:
    """Open the mask that an output was computed with; return None if there was none."""
    recorded = origin.attributes.mask
    if not recorded:
        if replacement is not None:
            raise InvalidInput(f"{output.name} was computed without a mask; leave it out")
        return None
    if replacement is None and _was_array(recorded, ledger, "the mask"):
        raise InvalidInput(
            f"{output.name} was computed with a mask in memory, of type {recorded}; give it, or a "
            f"file of it, as {option('mask', 'FILE')}"
        )
    try:
        mask = open_volume(recorded if replacement is None else replacement)
    except InvalidInput as error:
        raise InvalidInput(
            f"{error}; {output.name} was computed with the mask {recorded}: if that lies "
            f"elsewhere, give {option('mask', 'FILE')}"
        ) from None
    check_mask(mask, volume)
    return mask


def weights_of(origin: Origin, output: StoredVolume, other: Weights | str | Path | None) -> Weights:
    """Load the weights that an output was computed with."""
    recorded, network = origin.attributes, origin.network
    elsewhere = f"if they lie elsewhere, give {option('weights', 'FILE')}"
    try:
        if other is None:
            loaded = weights_again(recorded.weights, network)
        else:
            loaded = weights_for(network, other, None)
    except InvalidInput as error:
        raise InvalidInput(f"{error}; {elsewhere}") from None
    check_weights(output.name, recorded.weights_sha256, loaded, elsewhere)
    return loaded


def check_weights(name: str, recorded: str, loaded: Weights, advice: str) -> None:
    """Check that weights are those that an output was computed with.

    Args:
        name: the output.
        recorded: the hash that it notes.
        advice: what to do if they are not.
    """
    if loaded.sha256 != recorded:
        raise InvalidInput(
            f"{name} was computed with other weights than those of {loaded.source}: their "
            f"SHA-256 is {recorded[:12]}..., and these have {loaded.sha256[:12]}...; {advice}"
        )


def _named(volume: object) -> str:
    return str(volume) if isinstance(volume, str | Path) else type(volume).__name__


def _was_array(recorded: str | Path | ArrayLike, ledger: Ledger, name: str) -> bool:
    """Return whether the recorded name of a volume is the type of an array, not a path.

    The ledger has marks for files that arrays do not have. A folder is a Zarr, whose name has an
    ending.
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
    """Refuse an input whose marks differ from the ledger's; its time of change may differ."""
    recorded, whole = origin.attributes, Box(ZERO, volume.size)
    offset = Vec3(*recorded.voxel_offset)
    region = Box(offset, offset + output.size)
    job = make_job(origin.network, volume.size, recorded.border, recorded.pad, region)
    seen = seen_by(origin.network, job)
    marks = fingerprint(source, volume, seen.intersection(whole) or whole)
    if marks.keys() != {name for name in ledger.identity if name.startswith("the input's ")}:
        return  # for example, a file before and an array now: their marks cannot be compared
    for name, mark in marks.items():
        if ledger.identity[name] != mark and not name.endswith("time of change"):
            raise InvalidInput(
                f"{output.name} was computed from another input, or this one has changed since: "
                f"{then_and_now(name, ledger.identity[name], mark)}; give that one, as "
                f"{option('source', 'FILE')}"
            )
