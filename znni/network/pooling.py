"""Pooling as a layer of a network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from znni.core.errors import InvalidInput
from znni.core.shapes import ONE, ZERO, Vec3
from znni.network.layer_checks import check_extents
from znni.network.layer_geometry import NO_PADDING, Padding, SameVoxel, SlidBox

Reduce = Literal["max", "average"]


@dataclass(frozen=True, repr=False)
class Pool(SlidBox):
    """Pooling by the maximum or the average of a window.

    If the stride is the window and nothing is padded, a network may be slid over every voxel. The
    plan then chooses between plain pooling and all fragments.

    Attributes:
        name: the name, unique within the network.
        window: the extents in samples.
        reduce: ``max`` or ``average``.
        step: the samples of the input from one sample of the output to the next. ``ZERO`` stands
            for the window, and the window is stored as ``ZERO``.
        dilation: the samples of the input from one sample of a window to the next.
        padding: the samples around the input. A maximum ignores them; an average counts zeros.

    Raises:
        InvalidInput: an extent is not positive, or the padding is negative or as large as the
            reach of the window.
    """

    name: str
    window: Vec3
    reduce: Reduce = "max"
    step: Vec3 = ZERO
    padding: Padding = NO_PADDING
    dilation: Vec3 = ONE
    kind: Literal["pool"] = field(default="pool", repr=False)

    def __post_init__(self) -> None:
        where = f"layer {self.name}"
        check_extents(f"{where}: window", self.window)
        check_extents(f"{where}: stride", self.step, least=0)
        check_extents(f"{where}: dilation", self.dilation)
        if self.step == self.window:
            object.__setattr__(self, "step", ZERO)  # so that equal poolings compare equal
        for side in self.padding:
            check_extents(f"{where}: padding", side, least=0)
            if not side.within(self.reach - 1):
                raise InvalidInput(
                    f"{where}: padding {side} is as large as the window {self.reach}; give less"
                )

    @property
    def stride(self) -> Vec3:
        """The samples of the input from one sample of the output to the next."""
        return self.window if self.step == ZERO else self.step

    @property
    def reach(self) -> Vec3:
        """The samples from the first to the last of a window, both included."""
        return (self.window - 1) * self.dilation + 1

    @property
    def is_dense(self) -> bool:
        """True if it may be evaluated at every voxel, by fragments."""
        plain = self.stride == self.window and self.padding == NO_PADDING
        return plain and self.dilation == ONE

    @property
    def sees_edges(self) -> bool:
        """True if it must know where the volume ends: a maximum ignores what is beyond."""
        return self.reduce == "max" and self.padding != NO_PADDING

    @property
    def local(self) -> Pool:
        """The pooling of a block whose samples outside the volume are stored with it."""
        return self if self.sees_edges else replace(self, padding=NO_PADDING)


@dataclass(frozen=True, repr=False)
class GlobalPool(SameVoxel):
    """The average or the maximum of each map, over a whole window.

    Its value has one sample, whatever the extents of its input are.
    """

    name: str
    reduce: Literal["average", "max"] = "average"
    kind: Literal["global_pool"] = field(default="global_pool", repr=False)

    def scaled(self, scale: Vec3) -> Vec3:  # noqa: ARG002 - for an input of any scale
        """Return the voxels per sample of the output: those of the network's input."""
        return ONE

    def size_from(self, *sizes: Vec3) -> Vec3:  # noqa: ARG002 - for inputs of any size
        """Return the output's samples per axis: one."""
        return ONE

    def local_size(self, size: Vec3) -> Vec3:  # noqa: ARG002 - for inputs of any size
        """Return the output's samples per axis for a stored input: one."""
        return ONE
