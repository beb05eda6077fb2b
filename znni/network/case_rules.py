"""Whole cases: the steps from a scan's files to the network's input, and from its output to labels.

The network file describes them in ``case:``. ``znni/cases`` carries them out. The steps and their
numbers are those of nnU-Net 2, or of MONAI's transforms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from znni.core.errors import InvalidInput

# The order of a spline.
SplineOrder: TypeAlias = Literal[0, 1, 3]

# When slices across the coarsest axis are resampled one by one. ``auto``: if voxels are more than
# three times as long there as along another axis.
Slices: TypeAlias = Literal["auto", "always", "never"]

# The order of the axes of a scan: as its file stores them, or turned to right, anterior, superior.
Orientation: TypeAlias = Literal["stored", "RAS"]

# What keeps its place when a scan is resampled: its whole extent, as in nnU-Net, or the centre of
# its first voxel, as in MONAI. ``none``: no scan is resampled.
Align: TypeAlias = Literal["extent", "first", "none"]

# What windows see beyond a scan that is smaller than they are. ``none``: such a scan is an error.
Beyond: TypeAlias = Literal["zeros", "none"]


@dataclass(frozen=True)
class ScaleRange:
    """A linear change of values, as MONAI's ``ScaleIntensityRange``.

    Attributes:
        source: two values.
        target: the values that they become.
        clip: whether results are clipped to the target.

    Raises:
        InvalidInput: the values of the source are equal.
    """

    source: tuple[float, float]
    target: tuple[float, float] = (0.0, 1.0)
    clip: bool = False

    def __post_init__(self) -> None:
        if self.source[0] == self.source[1]:
            raise InvalidInput(f"scale_range is from {list(self.source)}; give two values")


@dataclass(frozen=True)
class Stretch:
    """A linear change of values by their minimum and maximum, as MONAI's ``ScaleIntensity``.

    Attributes:
        target: the values that minimum and maximum become.
        each: whether each map has its own minimum and maximum.
    """

    target: tuple[float, float] = (0.0, 1.0)
    each: bool = False


@dataclass(frozen=True)
class Standardize:
    """A change of values to mean 0 and standard deviation 1, as MONAI's ``NormalizeIntensity``.

    Attributes:
        nonzero: whether values of 0 do not count, and stay 0.
        each: whether each map has its own mean and standard deviation.
    """

    nonzero: bool = False
    each: bool = False


ValueStep: TypeAlias = ScaleRange | Stretch | Standardize


@dataclass(frozen=True)
class ResampleRule:
    """The rule by which values are resampled to other voxels.

    Attributes:
        order: the order of the spline.
        across: the order across slices that are resampled one by one.
        slices: when slices are resampled one by one.
    """

    order: SplineOrder = 3
    across: SplineOrder = 0
    slices: Slices = "auto"


@dataclass(frozen=True)
class CaseRules:
    """The steps of whole cases.

    Attributes:
        channels: the names of the files of a case, in the order of the network's input maps.
        file_ending: the ending of these files, and of the labels.
        orientation: how the axes of a scan are turned before all other steps.
        image: how the normalized scan is resampled to the voxels that the network was trained on.
        output: how the network's output is resampled back.
        align: what keeps its place when a scan is resampled.
        values: the changes of values after the scan is resampled.
        masks: the number from which on a value of the output counts as 1. The labels are then a
            mask for each map. None: a voxel gets the label of its largest map, or of its last
            region.
        largest: labels whose voxels stay only in the largest component of each group.
        beyond: what windows see beyond a scan that is smaller than they are.

    Raises:
        InvalidInput: there is no channel, the output has an order above 1, or the ending no dot. Or
            slices are to be resampled one by one, and the first voxel keeps its place.
    """

    channels: tuple[str, ...]
    file_ending: str = ".nii.gz"
    orientation: Orientation = "stored"
    image: ResampleRule = ResampleRule()
    output: ResampleRule = ResampleRule(order=1)
    align: Align = "extent"
    values: tuple[ValueStep, ...] = ()
    masks: float | None = None
    largest: tuple[tuple[int, ...], ...] = ()
    beyond: Beyond = "zeros"

    @property
    def scan(self) -> tuple[object, ...]:
        """All that decides how the files of a case are read and written."""
        return self.channels, self.file_ending, self.orientation

    @property
    def input_steps(self) -> tuple[object, ...]:
        """All that decides, beside spacing and normalization, on the input of the network."""
        return *self.scan, self.image, self.align, self.values

    def __post_init__(self) -> None:
        if not self.channels:
            raise InvalidInput("a case has no channels; name each of its files")
        if max(self.output.order, self.output.across) > 1:
            raise InvalidInput(
                f"the output of a case is resampled by order {self.output.order}, and "
                f"{self.output.across} across slices; give 0 or 1"
            )
        if self.align == "first" and "always" in (self.image.slices, self.output.slices):
            raise InvalidInput(
                "slices are resampled one by one only with align: extent; leave out slices: always"
            )
        if self.masks is not None and self.largest:
            raise InvalidInput("components of labels are found, not of masks; leave out largest:")
        if not self.file_ending.startswith("."):
            raise InvalidInput(
                f"the files of a case end in {self.file_ending!r}; give an ending, such as .nii.gz"
            )
