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

# The file that says how large a scan's voxels are: its own, or a JSON file beside it, in which
# nnU-Net notes those of TIFF.
VoxelsFrom: TypeAlias = Literal["file", "json"]

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
        across: the order across slices that are resampled one by one.
        slices: when slices are resampled one by one.
    """

    order: SplineOrder = 3
    across: SplineOrder = 0
    slices: Slices = "auto"


@dataclass(frozen=True)
class PreviousStage:
    """An earlier network of a cascade, whose labels are further maps of the input.

    Each further map is 1 where the earlier network gives its label, and else 0.

    Attributes:
        name: the name of the earlier network, such as ``3d_lowres``.
        labels: the label of each further map.
        resampled: how the labels are resampled to the voxels that the network was trained on. Each
            label's share counts.

    Raises:
        InvalidInput: there is no label, or the order is above 1.
    """

    name: str
    labels: tuple[int, ...]
    resampled: ResampleRule = ResampleRule(order=1)

    def __post_init__(self) -> None:
        if not self.labels:
            raise InvalidInput(f"the previous stage {self.name} has no labels; give some")
        _check_linear("labels of the previous stage are", self.resampled)


@dataclass(frozen=True)
class CaseRules:
    """The steps of whole cases.

    Attributes:
        channels: the names of the files of a case, in the order of the network's input maps.
        file_ending: the ending of these files, and of the labels.
        orientation: how the axes of a scan are turned before all other steps.
        image: how the normalized scan is resampled to the voxels that the network was trained on.
        output: how the network's output is resampled back.
        previous_stage: the earlier network of a cascade; None: there is none.
        voxels: the file that says how large voxels are.
        align: what keeps its place when a scan is resampled.
        values: the changes of values after the scan is resampled.
        masks: the number from which on a value of the output counts as 1. The labels are then a
            mask for each map. None: a voxel gets the label of its largest map, or of its last
            region.
        largest: labels whose voxels stay only in the largest component of each group.
        beyond: what windows see beyond a scan that is smaller than they are.

    Raises:
        InvalidInput: there is no channel, the output has an order above 1, or the ending no dot. Or
            slices are to be resampled one by one, or labels of a previous stage, and the extent
            does not keep its place.
    """

    channels: tuple[str, ...]
    file_ending: str = ".nii.gz"
    orientation: Orientation = "stored"
    image: ResampleRule = ResampleRule()
    output: ResampleRule = ResampleRule(order=1)
    previous_stage: PreviousStage | None = None
    voxels: VoxelsFrom = "file"
    align: Align = "extent"
    values: tuple[ValueStep, ...] = ()
    masks: float | None = None
    largest: tuple[tuple[int, ...], ...] = ()
    beyond: Beyond = "zeros"

    @property
    def scan(self) -> tuple[object, ...]:
        """All that decides how the files of a case are read and written."""
        return self.channels, self.file_ending, self.orientation, self.voxels

    @property
    def input_steps(self) -> tuple[object, ...]:
        """All that decides, beside spacing and normalization, on the input of the network."""
        return *self.scan, self.image, self.align, self.values

    def __post_init__(self) -> None:
        if not self.channels:
            raise InvalidInput("a case has no channels; name each of its files")
        _check_linear("the output of a case is", self.output)
        if self.align == "first" and "always" in (self.image.slices, self.output.slices):
            raise InvalidInput(
                "slices are resampled one by one only with align: extent; leave out slices: always"
            )
        if self.align != "extent" and self.previous_stage:
            raise InvalidInput(
                "labels of a previous stage are resampled only with align: extent; leave out align:"
            )
        if self.masks is not None and self.largest:
            raise InvalidInput("components of labels are found, not of masks; leave out largest:")
        if not self.file_ending.startswith("."):
            raise InvalidInput(
                f"the files of a case end in {self.file_ending!r}; give an ending, such as .nii.gz"
            )


def _check_linear(what: str, rule: ResampleRule) -> None:
    """Check that a rule has no order above 1."""
    if max(rule.order, rule.across) > 1:
        raise InvalidInput(
            f"{what} resampled by order {rule.order}, and {rule.across} across slices; give 0 or 1"
        )
