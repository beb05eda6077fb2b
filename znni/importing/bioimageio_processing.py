"""Preprocessing and postprocessing of bioimage.io models, as input scaling and as steps.

What the description calls the statistics of a sample, or of a data set, are those of the whole
volume here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.importing.bioimageio_description import Processing, Tensor
from znni.importing.steps import Float64, Layered, Nonlinearity, Operation, affine
from znni.network.input_scaling import Fixed, InputScaling, Percentiles, ZScore
from znni.network.weights import Float32
from znni.primitives.reference import activation

FLOATS = ("float32", "float64")
LARGEST = float(np.finfo(np.float32).max)
EPS = 1e-6  # added to a standard deviation in format 0.4, unless it says otherwise
BATCH, CHANNEL = ("b", "batch"), ("c", "channel")
BY_ITSELF = "do it to the volume yourself, and delete it from the description"


@dataclass
class _Scaling:
    """The steps done to an input so far.

    Attributes:
        gain: the factor of each map's stored values, after they are clipped.
        offset: what is added then.
        clip: the least and the largest stored value of each map.
        by: the statistics of the volume by which the values are normalized then.
        together: whether these are of all maps together.
        steps: what is done after that, as steps of the network.
    """

    gain: Float64
    offset: Float64
    clip: tuple[Float64, Float64] | None = None
    by: ZScore | Percentiles | None = None
    together: bool = False
    steps: list[Operation] = field(default_factory=list)

    def add(self, step: Processing, tensor: Tensor) -> None:
        """Take in the next step of preprocessing."""
        maps = len(self.gain)
        origin, given = f"preprocessing {step.kind}", step.given
        match step.kind:
            case "ensure_dtype" if given.get("dtype") in FLOATS:
                pass
            case "scale_linear" | "fixed_zero_mean_unit_variance":
                self._scale(origin, *_factors(step, maps))
            case "zero_mean_unit_variance" if given.get("mode") == "fixed":
                self._scale(origin, *_factors(step, maps))
            case "zero_mean_unit_variance":
                self.together = _are_together(step, tensor, maps)
                self._normalize(origin, ZScore())
            case "scale_range":
                self.together = _are_together(step, tensor, maps)
                if given.get("reference_tensor") not in (None, tensor.name):
                    raise InvalidInput(f"{origin} is by another tensor; {BY_ITSELF}")
                low, high = given.get("min_percentile", 0.0), given.get("max_percentile", 100.0)
                self._normalize(origin, Percentiles(_number(origin, low), _number(origin, high)))
            case "clip":
                self._clip(origin, *_bounds(step))
            case "sigmoid":
                self.steps.append(Nonlinearity(origin, "sigmoid"))
            case _:
                raise InvalidInput(f"{origin} is not known here; {BY_ITSELF}")

    def _scale(self, origin: str, gain: Float64, offset: Float64) -> None:
        if self.by or self.steps:
            self.steps.append(affine(origin, gain, offset))
        else:
            self.gain, self.offset = self.gain * gain, self.offset * gain + offset

    def _normalize(self, origin: str, by: ZScore | Percentiles) -> None:
        if self.by or self.clip or self.steps or (self.gain <= 0).any():
            raise InvalidInput(
                f"{origin} takes statistics of values that are clipped, normalized or turned over "
                f"before, which znni does not; {BY_ITSELF}"
            )
        self.by = by  # it undoes any factor above 0 and any offset

    def _clip(self, origin: str, low: float, high: float) -> None:
        if self.by or self.steps or (self.gain <= 0).any():
            raise InvalidInput(
                f"{origin} comes after statistics of the volume, or after values are turned over; "
                f"znni clips stored values only: {BY_ITSELF}"
            )
        bounds = [
            ((bound - self.offset) / self.gain).clip(-LARGEST, LARGEST) for bound in (low, high)
        ]
        if self.clip:
            bounds = [np.maximum(bounds[0], self.clip[0]), np.minimum(bounds[1], self.clip[1])]
        self.clip = bounds[0], bounds[1]

    @property
    def scaling(self) -> InputScaling:
        """The scaling of stored values."""
        gain, offset = self.gain, self.offset
        if self.by:
            return InputScaling(normalize=(self.by,), together=self.together)
        alike = (gain == gain[0]).all() and (offset == offset[0]).all()
        if self.clip is None and alike:
            return InputScaling(float(gain[0]), float(offset[0]))
        if (gain <= 0).any():  # a division by a number above 0 cannot turn values over
            self.steps.insert(0, affine("preprocessing scale_linear", gain, offset))
            return InputScaling()
        rules = tuple(map(self._fixed, range(len(gain))))
        return InputScaling(normalize=rules[:1] if len(set(rules)) == 1 else rules)

    def _fixed(self, index: int) -> Fixed:
        gain, offset = float(self.gain[index]), float(self.offset[index])
        clip = None
        if self.clip:
            clip = float(self.clip[0][index]), float(self.clip[1][index])
        return Fixed(-offset / gain if offset else 0.0, 1 / gain, clip)


def input_scaling(tensor: Tensor, maps: int) -> tuple[InputScaling, tuple[Operation, ...]]:
    """Return how stored values are scaled, and the steps that follow before the network.

    Raises:
        InvalidInput: a step of preprocessing is nothing that znni does.
    """
    found = _Scaling(np.ones(maps), np.zeros(maps))
    for step in tensor.processing:
        found.add(step, tensor)
    scaling = found.scaling
    return scaling, tuple(found.steps)


def output_steps(tensor: Tensor, maps: int) -> tuple[tuple[Operation, ...], float | None]:
    """Return the steps after a network, and the threshold of the last one if it has one.

    Raises:
        InvalidInput: a step of postprocessing is nothing that znni does.
    """
    steps: list[Operation] = []
    threshold: float | None = None
    for step in tensor.processing:
        origin, given = f"postprocessing {step.kind}", step.given
        match step.kind:
            case "ensure_dtype" if threshold is not None or given.get("dtype") in FLOATS:
                pass
            case _ if threshold is not None:
                raise InvalidInput(f"{origin} comes after a threshold; delete both from it")
            case "scale_linear":
                steps.append(affine(origin, *_factors(step, maps)))
            case "sigmoid":
                steps.append(Nonlinearity(origin, "sigmoid"))
            case "softmax" if given.get("axis", "channel") in CHANNEL:
                steps.append(Nonlinearity(origin, "softmax"))
            case "clip" if _keeps_shares(steps, *_bounds(step)):
                pass
            case "binarize":
                threshold = _number(origin, given.get("threshold"))
            case _:
                raise InvalidInput(
                    f"{origin} of its output {tensor.name} is not known here; delete it from the "
                    f"description, and do it to the output yourself"
                )
    return tuple(steps), threshold


def applied(values: Float32, steps: Sequence[Operation]) -> Float32:
    """Return values (f, z, y, x) after steps of preprocessing or postprocessing."""
    made = values[np.newaxis].astype(np.float64)
    for step in steps:
        if isinstance(step, Layered):
            made = made * step.weight[:, None, None, None] + step.bias[:, None, None, None]
        elif isinstance(step, Nonlinearity):
            made = activation(made, step.kind)
    return np.asarray(made[0], np.float32)


def threshold_note(threshold: float) -> str:
    """Return the note about a threshold after the network."""
    return (
        f"the package stores 1 where the output is above {threshold:g}; "
        f"{option('threshold', threshold)} does so"
    )


def _keeps_shares(steps: Sequence[Operation], low: float, high: float) -> bool:
    """Return whether clipping changes nothing, because values are from 0 to 1 anyhow."""
    last = steps[-1] if steps else None
    return isinstance(last, Nonlinearity) and low <= 0 and high >= 1


def _factors(step: Processing, maps: int) -> tuple[Float64, Float64]:
    """Return the factor and the offset of each map."""
    origin, given = step.kind, step.given
    axis = given.get("axis")
    if axis is not None and axis not in CHANNEL:  # numbers differ from map to map only
        raise InvalidInput(f"{origin} has numbers along the axis {axis}; {BY_ITSELF}")
    if step.kind == "scale_linear":
        gain, offset = given.get("gain", 1.0), given.get("offset", 0.0)
        return _of_maps(origin, gain, maps), _of_maps(origin, offset, maps)
    mean = _of_maps(origin, given.get("mean"), maps)
    std = _of_maps(origin, given.get("std"), maps)
    if step.kind == "zero_mean_unit_variance":
        std = std + _number(origin, given.get("eps", EPS))
    if not (std > 0).all():
        raise InvalidInput(f"{origin} has a std of {given.get('std')}; it has to be above 0")
    return 1 / std, -mean / std


def _of_maps(origin: str, value: Any, maps: int) -> Float64:
    """Return a number for each map."""
    given = value if isinstance(value, list) else [value]
    numbers = np.array([_number(origin, one) for one in given])
    if len(numbers) not in (1, maps):
        raise InvalidInput(f"{origin} has numbers for {len(numbers)} maps, and there are {maps}")
    return np.broadcast_to(numbers, maps).astype(np.float64)


def _number(origin: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise InvalidInput(f"{origin} has {value!r} where one finite number is expected")
    return float(value)


def _bounds(step: Processing) -> tuple[float, float]:
    """Return the least and the largest value of a step that clips."""
    if any(step.given.get(f"{end}_percentile") is not None for end in ("min", "max")):
        raise InvalidInput(f"{step.kind} is by percentiles, which znni does not; {BY_ITSELF}")
    low, high = step.given.get("min"), step.given.get("max")
    return (
        -LARGEST if low is None else _number(step.kind, low),
        LARGEST if high is None else _number(step.kind, high),
    )


def _are_together(step: Processing, tensor: Tensor, maps: int) -> bool:
    """Return whether statistics are those of all maps together.

    Raises:
        InvalidInput: they are not of whole maps.
    """
    axes = step.given.get("axes")
    letters = set(tensor.axes if axes is None else axes)
    if not set("zyx") <= letters:
        raise InvalidInput(
            f"{step.kind} takes statistics along {', '.join(sorted(letters))} only, and znni those "
            f"of the whole volume; {BY_ITSELF}"
        )
    return bool(letters & set(CHANNEL)) and maps > 1
