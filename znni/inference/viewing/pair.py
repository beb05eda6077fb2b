"""An input and its output, opened together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from znni.core.option_types import Viewer
from znni.core.run_options import InputOptions
from znni.core.shapes import Vec3
from znni.inference.viewing.input_selection import open_input_of
from znni.inference.viewing.region import offset_of
from znni.inference.viewing.resolutions import Resolutions
from znni.inference.viewing.viewers import Opened, napari_program, neuroglancer_program
from znni.volumes.array import ArrayVolume
from znni.volumes.label_values import holds_labels
from znni.volumes.locate import open_volume
from znni.volumes.stored import is_url


@dataclass(frozen=True)
class Pair:
    """An input and its output.

    Attributes:
        source: file or URL of the input.
        out: file or URL of the output.
        read: the part of the input's file that the output was computed from.
        volume: the input.
        offset: the input voxel that the output's first voxel stands for.
        by_origin: whether only the output's origin tells that.
    """

    source: str | Path
    out: str | Path
    read: InputOptions
    volume: ArrayVolume
    output: ArrayVolume
    offset: Vec3
    by_origin: bool

    @classmethod
    def opened(
        cls, source: str | Path, out: str | Path, dataset: str | None, voxel_size: str | None
    ) -> Pair:
        """Open both.

        Args:
            source: file or URL of the input.
            out: file or URL of the output.
            dataset: dataset of the input; None for the one that the output was computed from.
            voxel_size: extents of the input's voxels; None for those that the files have.

        Raises:
            InvalidInput: one of them cannot be opened, or they do not belong together.
        """
        output = open_volume(out)
        read, volume = open_input_of(output, source, dataset, voxel_size)
        return cls(source, out, read, volume, output, *offset_of(output, volume))

    @cached_property
    def input_resolutions(self) -> Resolutions:
        """The resolutions of the input."""
        return Resolutions(self.volume)

    @cached_property
    def output_resolutions(self) -> Resolutions:
        """The resolutions of the output."""
        return Resolutions(self.output)

    @property
    def holds_labels(self) -> bool:
        """True if the output says that it holds labels."""
        return holds_labels(self.output.attributes(), self.output.dtype)

    def programs(self, labels: bool | None) -> Mapping[Viewer, str]:
        """Return the programs that open both in other viewers.

        Args:
            labels: whether the output's values are shown as labels; None: as it says.
        """
        shown = self.holds_labels if labels is None else labels
        read = {name: getattr(self.read, name) for name in ("dataset", "channel", "time")}
        below = Opened(
            _anywhere(self.source),
            self.volume.grid,
            self.volume.size,
            self.volume.features,
            len(self.input_resolutions),
            {name: value for name, value in read.items() if value is not None},
        )
        above = Opened(
            _anywhere(self.out),
            self.volume.grid.starting_at(self.offset),
            self.output.size,
            self.output.features,
            len(self.output_resolutions),
        )
        return {
            "napari": napari_program(below, above, labels=shown),
            "neuroglancer": neuroglancer_program(below, above, self.offset, labels=shown),
        }


def _anywhere(place: str | Path) -> str:
    """Return a path or URL that holds in any folder."""
    text = str(place)
    return text if is_url(text) else str(Path(text).absolute())
