"""Headers of text before an image's values, and the functions of formats that have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from znni.core.errors import InvalidInput
from znni.core.option_types import Moment
from znni.core.volume import Grid
from znni.volumes.formats import Functions, describe_image
from znni.volumes.stored import StoredVolume, check_no_dataset, errors_as, local_file, reason
from znni.volumes.values_in_file import ValuesInFile, unpacked


@dataclass(frozen=True)
class TextHeader(ABC):
    """The content of a header. Its parts raise a ``ValueError`` if znni cannot read them.

    Attributes:
        path: its file.
        fields: the values of its fields, by name.
        end: the place of the first byte behind the header.
    """

    path: Path
    fields: dict[str, str]
    end: int

    @classmethod
    @abstractmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a file."""

    @property
    @abstractmethod
    def moments(self) -> int:
        """The points in time."""

    @abstractmethod
    def values(self, time: Moment | None = None) -> ValuesInFile:
        """Return the place of the values, of which the user chooses a point in time."""

    @property
    @abstractmethod
    def stored(self) -> dict[str, Any]:
        """The account of how an output was made."""

    @abstractmethod
    def grid(self, attributes: dict[str, Any]) -> Grid:
        """Return the place of the voxels, given the attributes of an output."""

    @property
    @abstractmethod
    def plain(self) -> bytes:
        """The header of a copy that is not compressed."""

    def needed(self, name: str) -> str:
        """Return the value of a field that a file must have."""
        if name not in self.fields:
            raise ValueError(f"it has no field {name!r}")
        return self.fields[name]


def functions_of(name: str, endings: tuple[str, ...], header_type: type[TextHeader]) -> Functions:
    """Return the functions of a format. Its first ending is of files with header and values."""

    def damage(place: str) -> AbstractContextManager[None]:
        whole = f"{' or '.join(endings)} file"
        return errors_as(
            lambda error: InvalidInput(
                f"{place}: cannot be read as {name}: {reason(error)}; give a whole {whole}"
            )
        )

    def open_image(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
        """Open the image of a file, with its axes in the order (c, z, y, x).

        Voxels keep their stored order. The orientation of the file is kept for outputs.
        """
        check_no_dataset(place, dataset)
        with damage(place):
            header = header_type.read(local_file(place, name))
            attributes = header.stored.get("attributes", {})
            return header.values(time).volume(place, header.grid(attributes), attributes, time)

    def describe(place: str, dataset: str | None) -> str:
        with damage(place):
            moments = header_type.read(local_file(place, name)).moments
        return describe_image(
            place, open_image(place, dataset, 0 if moments > 1 else None), moments
        )

    def unpack(place: str, copy: Path | None) -> Path:
        with damage(place):
            header = header_type.read(local_file(place, name))
            values = header.values()
        if not values.packed:
            return Path(place)
        return unpacked(place, copy, endings[0], header.plain, values)

    def files(place: str) -> list[Path]:
        with damage(place):
            header = header_type.read(local_file(place, name))
            return header.values().files(header.path)

    return Functions(open_image, describe, unpack, files)
