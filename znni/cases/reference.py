"""The input of a case's network, computed again by NumPy and SciPy in float64.

Verification compares labels with it. The module shares no code with the preparation of cases,
except for reading scans and computing extents.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from znni.cases.scan import Scan
from znni.core.resampling import Resampling
from znni.core.shapes import ZERO, Box, Vec3
from znni.network.case_rules import ScaleRange
from znni.network.input_scaling import Fixed, InputScaling, Normalization, ZScore
from znni.network.network import Network

# Source voxels around a box, beyond which no voxel changes a spline by more than 1e-13.
MARGIN = 24


class ScanInMemory:
    """A scan as the steps of a case normalize it. It lies in memory.

    Attributes:
        crop: the voxels of the scan that count.
        network: the network, with the numbers that normalize this scan.
    """

    def __init__(self, scan: Scan, network: Network) -> None:
        whole = Box(ZERO, scan.volume.size)
        values = scan.volume.read(whole)
        scaling = network.scaling
        self.crop = _around(_nonzero(values)) if scaling.crops else whole
        self._values = values[:, *self.crop.slices]
        self._mask: NDArray[np.bool_] | None = None
        if scaling.within == "nonzero":
            self._mask = ndimage.binary_fill_holes(_nonzero(self._values))
        scaled = Fixed(-scaling.offset / scaling.scale, 1 / scaling.scale)
        rules = scaling.of_maps(len(values)) or (scaled,) * len(values)
        self._rules = [
            rule if isinstance(rule, Fixed) else self._statistics(rule, one)
            for rule, one in zip(rules, self._values, strict=True)
        ]
        fixed = InputScaling(normalize=tuple(self._rules))
        box = self.crop if scaling.crops else None
        self.network = network.scaled_by(replace(fixed, crop=scaling.crop, box=box))
        self._bounds: dict[int | None, NDArray[np.float64]] = {}

    def values(self, box: Box) -> NDArray[np.float64]:
        """Return the normalized values (f, z, y, x) of a box of the crop."""
        normal = self._values[:, *box.slices].astype(np.float64)
        for index, rule in enumerate(self._rules):
            if rule.clip is not None:
                normal[index].clip(*rule.clip, out=normal[index])
            normal[index] -= rule.mean
            normal[index] /= rule.std
        if self._mask is not None:
            normal *= self._mask[box.slices]
        return normal

    def bounds(self, separate: int | None) -> NDArray[np.float64]:
        """Return the least and the largest value of each map (f, 1, 2), or of its slices."""
        if separate not in self._bounds:
            self._bounds[separate] = self._found_bounds(separate)
        return self._bounds[separate]

    def _found_bounds(self, separate: int | None) -> NDArray[np.float64]:
        size = self.crop.size
        slices = []
        for z in range(size.z):
            plane = self.values(Box(Vec3(z, 0, 0), size._replace(z=z + 1)))
            axes = tuple(axis for axis in (1, 2, 3) if separate is None or axis != separate + 1)
            ends = [plane.min(axis=axes), plane.max(axis=axes)]
            slices.append(np.stack(ends, axis=-1).reshape(len(plane), -1, 2))
        if separate == 0:
            return np.concatenate(slices, axis=1)
        found = np.stack(slices)
        return np.stack([found[..., 0].min(axis=0), found[..., 1].max(axis=0)], axis=-1)

    def _statistics(self, rule: Normalization, values: NDArray[Any]) -> Fixed:
        counted = values.ravel() if self._mask is None else values[self._mask]
        if isinstance(rule, ZScore):
            mean, std = counted.mean(dtype=np.float64), counted.std(dtype=np.float64)
            return Fixed(float(mean), max(float(std), 1e-8))
        assert not isinstance(rule, Fixed)
        low, high = np.percentile(counted.astype(np.float64), [rule.low, rule.high])
        return Fixed(float(low), max(float(high - low), 1e-8))


class ResampledScan:
    """The input of a case's network: a scan that is resampled where it is needed."""

    def __init__(self, scan: ScanInMemory, resampling: Resampling) -> None:
        self._scan = scan
        self._resampling = resampling

    def __call__(self, box: Box) -> NDArray[np.float64]:
        """Return the values (f, z, y, x) of a box. Beyond the volume they are 0.

        Raises:
            ValueError: the values are changed by statistics of all of them.
        """
        volume = Box(ZERO, self._resampling.target)
        inside = box.intersection(volume)
        assert inside is not None
        found = np.zeros((self._scan.network.in_features, *box.size))
        at = inside.shifted(ZERO - box.start)
        found[:, *at.slices] = self._changed(self._inside(inside))
        return found

    def _changed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        rules = self._scan.network.case
        for step in rules.values if rules else ():
            if not isinstance(step, ScaleRange):
                raise ValueError(f"{step} needs statistics")
            (low, high), (new_low, new_high) = step.source, step.target
            values = (values - low) / (high - low) * (new_high - new_low) + new_low
            if step.clip:
                values = values.clip(new_low, new_high)
        return values

    def _inside(self, box: Box) -> NDArray[np.float64]:
        change = self._resampling
        if not change.changes:
            return self._scan.values(box)
        weights, ends = zip(*(self._along(axis, box) for axis in range(3)), strict=True)
        starts, stops = zip(*ends, strict=True)
        resampled = self._scan.values(Box(Vec3(*starts), Vec3(*stops)))
        order = [axis for axis in range(3) if axis != change.separate]
        for axis in order:
            resampled = _applied(weights[axis], resampled, axis + 1)
        if change.steps is None and 3 in [change.orders[axis] for axis in order]:
            resampled = self._clipped(resampled, starts)
        if change.separate is not None:
            resampled = _applied(weights[change.separate], resampled, change.separate + 1)
        return resampled

    def _clipped(self, values: NDArray[np.float64], starts: tuple[int, ...]) -> NDArray[np.float64]:
        separate = self._resampling.separate
        bounds = self._scan.bounds(separate)
        shape = [len(values), 1, 1, 1]
        if separate is not None:
            shape[separate + 1] = values.shape[separate + 1]
            first = starts[separate]
            bounds = bounds[:, first : first + shape[separate + 1]]
        return values.clip(bounds[..., 0].reshape(shape), bounds[..., 1].reshape(shape))

    def _along(self, axis: int, box: Box) -> tuple[NDArray[np.float64], tuple[int, int]]:
        """Return the weights (target, source) along an axis, and the source voxels they are of."""
        source, target = self._resampling.source[axis], self._resampling.target[axis]
        voxels = np.arange(box.start[axis], box.stop[axis])
        places = (voxels + 0.5) * (source / target) - 0.5
        if self._resampling.steps:
            places = self._resampling.starts[axis] + voxels * self._resampling.steps[axis]
        start = max(0, int(np.floor(places[0])) - MARGIN)
        stop = min(source, int(np.ceil(places[-1])) + MARGIN + 1)
        weights = np.empty((len(places), stop - start))
        order: Any = self._resampling.orders[axis]
        coordinates = (places - start)[np.newaxis]
        for column, unit in enumerate(np.eye(stop - start)):
            weights[:, column] = ndimage.map_coordinates(
                unit, coordinates, order=order, mode="nearest"
            )
        return weights, (start, stop)


def _applied(
    weights: NDArray[np.float64], values: NDArray[np.float64], axis: int
) -> NDArray[np.float64]:
    return np.moveaxis(np.tensordot(weights, values, (1, axis)), 0, axis)


def _nonzero(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where any map is not 0."""
    return np.asarray(values.any(axis=0))


def _around(mask: NDArray[np.bool_]) -> Box:
    """Return the box around the true voxels of a mask; all of it if there are none."""
    along = [np.flatnonzero(mask.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    if not len(along[0]):
        return Box(ZERO, Vec3(*mask.shape))
    start = Vec3(*(int(each[0]) for each in along))
    return Box(start, Vec3(*(int(each[-1]) + 1 for each in along)))
