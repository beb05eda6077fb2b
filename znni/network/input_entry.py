"""The entry of a network file for its input, and the scaling that it stands for."""

from __future__ import annotations

from operator import index
from typing import Annotated, Any

from pydantic import PlainValidator, StrictBool

from znni.core.errors import InvalidInput
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.yaml_file import Entry
from znni.network.input_scaling import (
    Crop,
    Fixed,
    InputScaling,
    Normalization,
    Percentiles,
    Within,
    ZScore,
)
from znni.network.layer_entries import Finite, finite


def _normalizations(value: object) -> tuple[Normalization, ...]:
    """Return how maps are normalized, from one entry for all or a list with one for each."""
    given = value if isinstance(value, list) else [value]
    if not given:
        raise ValueError("the list is empty; give one normalization for each map")
    return tuple(map(_normalization, given))


def _statistics(value: object) -> tuple[Fixed, ...]:
    """Return the known numbers of each map."""
    found = _normalizations(value)
    fixed = tuple(one for one in found if isinstance(one, Fixed))
    if len(fixed) < len(found):
        raise ValueError("give a list with the numbers of each map, as {mean: 100, std: 20}")
    return fixed


def _box(value: Any) -> Box:
    """Return the box whose first voxel, and the one after the last, are given."""
    try:
        start, stop = (Vec3(*map(index, ends)) for ends in value)
    except (TypeError, ValueError):
        start = stop = ZERO
    if min(start) < 0 or min(stop - start) < 1:
        raise ValueError("give the first voxel and the end, as [[0, 8, 8], [64, 120, 120]]")
    return Box(start, stop)


def _normalization(value: Any) -> Normalization:
    try:
        match value:
            case "zscore":
                return ZScore()
            case {"percentiles": [low, high], **others} if not others:
                return Percentiles(finite(low), finite(high))
            case {"mean": mean, "std": std, **others} if not set(others) - {"clip"}:
                if "clip" not in others:
                    return Fixed(finite(mean), finite(std))
                return Fixed(finite(mean), finite(std), _bounds(others["clip"]))
    except InvalidInput as error:
        raise ValueError(str(error)) from None
    except (TypeError, ValueError):
        pass  # the error below names what is allowed
    raise ValueError(
        "give zscore, {percentiles: [1, 99.8]} or {mean: 100, std: 20}, which may have "
        "clip: [0, 200]; or a list with one for each map"
    )


def _bounds(value: Any) -> tuple[float, float]:
    low, high = value
    return finite(low), finite(high)


class InputEntry(Entry):
    """The entry of a network file that says how stored values become the network's input."""

    scale: Finite = 1.0
    offset: Finite = 0.0
    normalize: Annotated[tuple[Normalization, ...], PlainValidator(_normalizations)] = ()
    within: Within = "all"
    statistics: Annotated[tuple[Fixed, ...], PlainValidator(_statistics)] = ()
    together: StrictBool = False
    crop: Crop = "none"
    box: Annotated[Box | None, PlainValidator(_box)] = None

    @property
    def scaling(self) -> InputScaling:
        """The scaling that the entry stands for."""
        return InputScaling(
            self.scale, self.offset, self.normalize, self.within, self.statistics, self.together,
            self.crop, self.box,
        )  # fmt: skip
