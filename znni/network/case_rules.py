"""Whole cases: the steps from a scan's files to the network's input, and from its output to labels.

The network file describes them in ``case:``. ``znni/cases`` carries them out. The steps and their
numbers are those of nnU-Net 2.
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

    Raises:
        InvalidInput: there is no channel, the output has an order above 1, or the ending no dot.
    """

    channels: tuple[str, ...]
    file_ending: str = ".nii.gz"
    orientation: Orientation = "stored"
    image: ResampleRule = ResampleRule()
    output: ResampleRule = ResampleRule(order=1)
    previous_stage: PreviousStage | None = None
    voxels: VoxelsFrom = "file"

    def __post_init__(self) -> None:
        if not self.channels:
            raise InvalidInput("a case has no channels; name each of its files")
        _check_linear("the output of a case is", self.output)
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
