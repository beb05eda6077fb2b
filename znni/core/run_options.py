"""Options of a run. Each is defined once, in the group of those who need it.

A field has the type, the default and the help of its option. The command line is made from these
fields, and the groups travel through a run as they are. ``RunKeywords`` has the same options with
their types, for type checkers. ``znni.infer`` documents them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, get_args

from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, option
from znni.core.option_fields import Panel, described, pick
from znni.core.option_types import (
    DEFAULT_COMPRESSION,
    Border,
    Channel,
    Compression,
    OutputType,
    Pad,
    PointInTime,
)
from znni.core.plan_options import Choices, PlanOptions
from znni.core.shapes import Region


def parse_time(text: str) -> PointInTime:
    """Return a point in time from its text.

    Raises:
        InvalidInput: it is neither a number nor ``all``.
    """
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{option('time', text)}: give a number from 0 on, or all") from None


def parse_channel(text: str) -> Channel:
    """Return the number of a map, or its name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def parse_roi(text: str) -> Region | None:
    """Return the region ``z0:z1,y0:y1,x0:x1``; either end may be left out. Empty: there is none.

    Raises:
        InvalidInput: the text has another form.
    """
    if not text:
        return None
    try:
        ends = [part.split(":") for part in text.split(",")]
        z, y, x = (slice(*(int(end) if end else None for end in (a, b))) for a, b in ends)
    except ValueError:
        raise InvalidInput(f"--roi {text} is not a region; write it as z0:z1,y0:y1,x0:x1") from None
    return z, y, x


@dataclass(frozen=True)
class InputOptions:
    """The part of a file that is the input, and how it is read."""

    panel: ClassVar[Panel] = "Input"

    dataset: str | None = described(None, "Dataset to read, if a file has several.")
    channel: Channel | None = described(
        None,
        "The only map to read, counted from 0, or its name if the file has names.",
        metavar="N",
        parse=parse_channel,
    )
    time: PointInTime | None = described(
        None,
        "Point in time to read, counted from 0; all: the points in time are the maps, "
        "those of --channel if each has several maps.",
        metavar="T|all",
        parse=parse_time,
    )
    invert: bool = described(
        False, "Exchange light and dark: 255 less the value for uint8, 1 less for floats."
    )
    voxel_size: str | None = described(
        None,
        "Extents of a voxel, as 0.5,0.1,0.1um or 40nm, if the file has none or wrong "
        "ones. Without a unit: in the file's.",
        metavar="Z,Y,X[UNIT]",
    )
    any_spacing: bool = described(
        False, "Run a network over voxels of another size than those that it was trained on."
    )


@dataclass(frozen=True)
class RegionOptions:
    """The voxels that get output, and what the network sees at the edges."""

    panel: ClassVar[Panel] = "Input"

    roi: Region | None = described(
        None,
        "Compute output only for these voxels. A missing end means the output's own end.",
        metavar="Z0:Z1,Y0:Y1,X0:X1",
        parse=parse_roi,
        first=True,
    )
    mask: str | Path | ArrayLike | None = described(
        None,
        "Volume of the same extents; blocks where it is all 0 are skipped and filled with 0.",
        metavar="FILE",
        parse=str,
    )
    border: Border = described(
        "valid",
        "valid: only voxels with their whole context; same: all voxels, with padded edges.",
        first=True,
    )
    pad: Pad | None = described(
        None,
        "How --border same fills the space beyond the edges. Default: reflect; constant "
        "(zeros) for windows.",
    )


@dataclass(frozen=True)
class ValueOptions:
    """The values that are stored."""

    panel: ClassVar[Panel] = "Output"

    dtype: OutputType = described(
        "float32", "Output type; uint8 stores 0..1 as 0..255.", before="accuracy"
    )
    labels: bool = described(
        False, "Store the label of the largest map, instead of values.", first=True
    )
    threshold: float | None = described(
        None, "Store 1 where a value is above this number, else 0, instead of values."
    )


@dataclass(frozen=True, kw_only=True)
class ExistingOptions:
    """The treatment of an output that exists, or that an earlier run has begun."""

    panel: ClassVar[Panel] = "Output"

    overwrite: bool = described(False, "Replace an existing output.", first=True)
    resume: bool = described(
        True, "Continue an interrupted run of the same command, or start afresh."
    )


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """The storage of an output's values. Formats without chunks have no such options.

    Raises:
        InvalidInput: there is no such compression.
    """

    panel: ClassVar[Panel] = "Output"

    compression: Compression | None = described(
        None, f"Compression of Zarr chunks. Default: {DEFAULT_COMPRESSION}."
    )
    sharded: bool = described(False, "Store many chunks of a Zarr in one file.")
    pyramid: bool | None = described(
        None,
        "Also store coarser resolutions of an OME-Zarr or OME-TIFF, or do not. Default: if it "
        "is larger than 256 voxels along each axis, by volume.",
    )

    def __post_init__(self) -> None:
        if self.compression is not None and self.compression not in get_args(Compression):
            known = ", ".join(get_args(Compression))
            raise InvalidInput(f"compression is {self.compression!r}; choose one of {known}")

    @property
    def marks(self) -> dict[str, str]:
        """The entries for these options in a ledger. Values do not depend on the resolutions."""
        return {
            "its compression": self.compression or "as usual",
            "its shards": "some" if self.sharded else "none",
        }


@dataclass(frozen=True)
class Options:
    """All options of a run, in their groups.

    Attributes:
        read: what is read.
        region: which voxels get output.
        limits: what a plan may use.
        values: which values are stored.
        existing: what becomes of an earlier output.
        storage: how values are stored.
    """

    read: InputOptions = InputOptions()
    region: RegionOptions = RegionOptions()
    limits: Choices = Choices()
    values: ValueOptions = ValueOptions()
    existing: ExistingOptions = ExistingOptions()
    storage: StorageOptions = StorageOptions()

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> Options:
        """Return the options that keyword arguments give, those of ``RunKeywords``.

        Raises:
            InvalidInput: a value cannot be used.
        """
        groups: dict[str, Any] = {each.name: type(each.default) for each in fields(cls)}
        return cls(**{name: pick(group, keywords) for name, group in groups.items()})


class RunKeywords(PlanOptions, total=False):
    """The options as keyword arguments of ``znni.infer``."""

    dataset: str | None
    channel: Channel | None
    time: PointInTime | None
    invert: bool
    voxel_size: str | None
    any_spacing: bool
    roi: Region | None
    mask: str | Path | ArrayLike | None
    border: Border
    pad: Pad | None
    dtype: OutputType
    labels: bool
    threshold: float | None
    overwrite: bool
    resume: bool
    compression: Compression | None
    sharded: bool
    pyramid: bool | None
