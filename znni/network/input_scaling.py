"""Scaling and normalization, by which stored values become a network's input.

Normalization by the values of a volume (its mean, or percentiles) becomes fixed once the volume is
known: ``znni.engine.statistics`` reads it. So all blocks, runs and machines take the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, TypeAlias

from znni.core.errors import InvalidInput
from znni.core.shapes import Box
from znni.core.text import counted

# The voxels that count, and that are normalized: all, or those where a map is not 0.
Within: TypeAlias = Literal["all", "nonzero"]

# The part of the volume that counts, and over which windows lie: the box around all voxels where a
# map is not 0.
Crop: TypeAlias = Literal["none", "nonzero"]

LEAST_DEVIATION = 1e-8  # as in nnU-Net: the values of a constant volume become 0
LEAST_STD = 2.0**-126  # the least normal number of float32; smaller ones may become 0


@dataclass(frozen=True)
class Fixed:
    """Normalization by known numbers: ``(clip(value) - mean) / std``.

    Attributes:
        mean: the value that becomes 0.
        std: the difference of values that becomes 1.
        clip: the least and the largest value; others become these first. None: none are clipped.

    Raises:
        InvalidInput: a number is out of range.
    """

    mean: float
    std: float
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isfinite(self.mean) or not LEAST_STD <= self.std < float("inf"):
            raise InvalidInput(
                f"input is normalized by mean {self.mean} and std {self.std}; give finite numbers, "
                f"and a std above 0 as float32"
            )
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise InvalidInput(f"input is clipped to {list(self.clip)}; give [lower, higher]")


@dataclass(frozen=True)
class ZScore:
    """Normalization to mean 0 and standard deviation 1 over the volume."""


@dataclass(frozen=True)
class Percentiles:
    """Normalization of two percentiles of the volume to 0 and 1; nothing is clipped.

    Attributes:
        low: the percentile that becomes 0; between samples it is interpolated, as in NumPy.
        high: the percentile that becomes 1.

    Raises:
        InvalidInput: a number is out of range.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 100:
            raise InvalidInput(
                f"input is normalized by the percentiles {self.low} and {self.high}; give two from "
                f"0 to 100, the lower one first"
            )


Normalization: TypeAlias = Fixed | ZScore | Percentiles


@dataclass(frozen=True)
class InputScaling:
    """The conversion of stored values to network input, as float32.

    Attributes:
        scale: the factor of ``value * scale + offset``.
        offset: the number that is added.
        normalize: how values are normalized instead: one for all maps, or one for each.
        within: ``nonzero``: only voxels where a map is not 0 count and are normalized; the others
            are 0.
        statistics: the numbers by which the maps of a known volume are normalized; empty until the
            volume is known.
        together: take the statistics of all maps together, so that all are normalized alike.
        crop: ``nonzero``: only the box around all voxels where a map is not 0 counts, and windows
            lie over it, as in nnU-Net. ``none``: the whole volume.
        box: that box of a known volume; None until the volume is known.

    Raises:
        InvalidInput: there is a scale or an offset beside a normalization, several normalizations
            for all maps together, or parts of a normalization without one.
    """

    scale: float = 1.0
    offset: float = 0.0
    normalize: tuple[Normalization, ...] = ()
    within: Within = "all"
    statistics: tuple[Fixed, ...] = ()
    together: bool = False
    crop: Crop = "none"
    box: Box | None = None

    def __post_init__(self) -> None:
        if self.normalize and (self.scale, self.offset) != (1.0, 0.0):
            raise InvalidInput("input has a scale or offset, and is normalized; give one of them")
        if self.within != "all" and not self.normalize:
            raise InvalidInput(f"input is not normalized; leave out within: {self.within}")
        if self.statistics and not self.normalize:
            raise InvalidInput("input is not normalized; leave out its statistics")
        if self.crops and not self.normalize:
            raise InvalidInput(f"input is not normalized; leave out crop: {self.crop}")
        if self.box is not None and not self.crops:
            raise InvalidInput("input is not cropped; leave out its box")
        if self.together and (len(self.normalize) != 1 or isinstance(self.normalize[0], Fixed)):
            raise InvalidInput(
                "input takes the statistics of all maps together; give one normalization for all, "
                "zscore or percentiles"
            )

    @property
    def is_fixed(self) -> bool:
        """True if it does not depend on the values of an unknown volume."""
        placed = not self.crops or self.box is not None
        return placed and (bool(self.statistics) or self.has_numbers)

    @property
    def crops(self) -> bool:
        """True if windows lie over a part of the volume."""
        return self.crop != "none"

    @property
    def has_numbers(self) -> bool:
        """True if all maps are normalized by given numbers, or none is."""
        return all(isinstance(one, Fixed) for one in self.normalize)

    @property
    def rules(self) -> InputScaling:
        """The same scaling for any volume."""
        return replace(self, statistics=(), box=None)

    def first(self, maps: int) -> InputScaling:
        """Return the scaling of the first maps alone."""
        rules, known = self.normalize[:maps], self.statistics[:maps]
        return replace(self, normalize=rules, statistics=known)

    def of_maps(self, maps: int) -> tuple[Normalization, ...]:
        """Return how each of the input's maps is normalized; nothing if none is.

        Raises:
            InvalidInput: there are more or fewer normalizations than maps.
        """
        if self.statistics and len(self.statistics) != maps:
            raise InvalidInput(
                f"the input has {counted(maps, 'map')}, and statistics of {len(self.statistics)}; "
                f"give those of each map, or none"
            )
        if len(self.normalize) in (0, maps):
            return self.normalize
        if len(self.normalize) > 1:
            raise InvalidInput(
                f"the input has {counted(maps, 'map')}, and {len(self.normalize)} normalizations; "
                f"give one for all, or one for each"
            )
        return self.normalize * maps

    def fixed(self, maps: int) -> tuple[Fixed, ...]:
        """Return the numbers by which each of the input's maps is normalized.

        Raises:
            ValueError: they depend on the values of a volume, which are not known.
        """
        given = self.statistics or self.of_maps(maps)
        known = tuple(one for one in given if isinstance(one, Fixed))
        if len(known) < len(given):
            raise ValueError(f"{self} is not known; call znni.engine.statistics.normalized first")
        return known

    def __str__(self) -> str:
        if not self.normalize:
            return f"value * {self.scale:g} + {self.offset:g}"
        nonzero = " where a map is not 0" * (self.within == "nonzero")
        maps = " over all maps together" * (self.together and not self.statistics)
        rules = self.statistics or self.normalize
        cropped = f" within {self.box or 'the box of what is not 0'}" * self.crops
        return f"normalized by {', '.join(map(_text, rules))}{maps}{nonzero}{cropped}"


AS_STORED = InputScaling()


def _text(one: Normalization) -> str:
    match one:
        case ZScore():
            return "mean and standard deviation of the volume"
        case Percentiles():
            return f"percentiles {one.low:g} and {one.high:g} of the volume"
    clipped = f", clipped to {one.clip[0]:g} to {one.clip[1]:g}" if one.clip else ""
    return f"mean {one.mean:.9g} and std {one.std:.9g}{clipped}"
