"""Statistics of a volume, by which its values are normalized.

The volume is read block by block, always in the same order. So the numbers do not depend on
threads, memory or chunks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from itertools import islice
from math import floor, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.components.nonzero import occupied_box
from znni.core.errors import InvalidInput, UnusableValues
from znni.core.shapes import FLOAT_BYTES, ZERO, Box, Vec3
from znni.core.volume import Volume
from znni.network.input_scaling import LEAST_DEVIATION, Fixed, Percentiles, Within, ZScore
from znni.network.network import Network

log = logging.getLogger("znni")

BLOCK = Vec3(64, 256, 256)  # of one map; with more maps, blocks have fewer planes
READERS = 2  # blocks that are read while one is counted
MASKS = 2  # bytes that say whether a value, and its voxel, are 0
# Bytes of a value while it is counted: its distance from the mean and the square, or its keys.
MOMENT_BYTES, RANK_BYTES = 16, 28
HALF = 16  # bits of a key that one pass over the volume counts
LOW = np.uint32(2**HALF - 1)

Values: TypeAlias = NDArray[Any]
Keys: TypeAlias = NDArray[np.uint32]


def normalized(
    network: Network, volume: Volume, progress: Callable[[int, int], None] | None = None
) -> Network:
    """Return a network whose input is normalized by known numbers.

    The volume is read if its own values are needed. Percentiles of values with more than 16 bits
    take a second pass.

    Args:
        network: the network.
        volume: the input.
        progress: called after each block with the voxels read, and those to read.

    Raises:
        InvalidInput: there are more or fewer normalizations than maps, no value counts, or the
            input is cropped for a network without windows.
        UnusableValues: a value is NaN, or infinite as float32.
    """
    scaling = network.scaling
    if scaling.is_fixed:
        return network
    rules = scaling.of_maps(network.in_features)
    if scaling.crops and not network.window:
        raise InvalidInput(
            f"network {network.name} crops its input, and is not computed in windows; leave out "
            f"crop: {scaling.crop}"
        )

    log.info("reading the whole volume, by whose values it is normalized or cropped")
    each = [range(index, index + 1) for index in range(len(rules))]
    counted = [range(len(rules))] if scaling.together else each  # the maps of each statistic
    scored = {maps: Moments() for maps in counted if isinstance(rules[maps[0]], ZScore)}
    ranked = {
        maps: _Ranks(rule) for maps in counted if isinstance(rule := rules[maps[0]], Percentiles)
    }
    statistics: dict[range, Moments | _Ranks] = {**scored, **ranked}
    twice = bool(ranked) and volume.itemsize > 2

    like_nnunet = network.window is not None and network.window.like == "nnunet"
    looks = scaling.crops or like_nnunet
    occupied: list[Box] = []  # of blocks, where a map is not 0
    # Voxels where all maps are 0 are only counted, if those outside of the crop do not count.
    read_within: Within = "nonzero" if scaling.crops else scaling.within

    def blocks(before: int = 0) -> Iterator[Sequence[Values]]:
        for read, box, block in _blocks(volume, read_within, looks and not before):
            if box:
                occupied.append(box)
            yield block
            if progress:
                progress(before + read, volume.size.volume * (1 + twice))

    counted_voxels = 0
    for block in blocks():
        counted_voxels += len(block[0])
        for maps, statistic in statistics.items():
            for index in maps:
                statistic.add(block[index])
    crop = _around(occupied, volume.size) if scaling.crops else None
    if crop and scaling.within == "all":
        for maps, statistic in statistics.items():
            statistic.add_zeros(len(maps) * (crop.size.volume - counted_voxels))
    if [ranks for ranks in ranked.values() if ranks.needs_second_pass()]:
        for block in blocks(before=volume.size.volume):
            for maps, ranks in ranked.items():
                for index in maps:
                    ranks.add_again(block[index])
    by_map: dict[int, Fixed] = {}
    for maps, statistic in statistics.items():
        by_map |= dict.fromkeys(maps, statistic.result())
    if like_nnunet and not scaling.crops:
        _warn_of_borders(occupied, volume.size)
    fixed = tuple(
        rule if isinstance(rule, Fixed) else by_map[index] for index, rule in enumerate(rules)
    )
    with_numbers = replace(scaling, statistics=() if scaling.has_numbers else fixed, box=crop)
    log.info("the input is %s", with_numbers)
    return network.scaled_by(with_numbers)


def statistics_bytes(network: Network, volume: Volume) -> int:
    """Return the most bytes that ``normalized`` takes for a volume."""
    stored, maps = volume.itemsize, volume.features
    seen = min(stored, FLOAT_BYTES)
    depth = min(max(1, BLOCK.z // maps), volume.size.z)
    voxels = BLOCK._replace(z=depth).minimum(volume.size).volume
    # A value as two arrays are stacked, or with its float32, or with the one that counts.
    reading = max(2 * stored, stored + seen, 2 * seen + MASKS)
    ranked = any(isinstance(rule, Percentiles) for rule in network.scaling.normalize)
    counting = RANK_BYTES if ranked else MOMENT_BYTES
    return voxels * (maps * (READERS * reading + seen) + counting)


class Moments:
    """The mean and the standard deviation of all values of a map.

    The numbers of blocks are joined as by Chan, Golub and LeVeque (1979), in float64.
    """

    def __init__(self) -> None:
        self.voxels, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Values) -> None:
        """Add some values."""
        if not values.size:
            return
        mean = float(values.mean(dtype=np.float64))
        squares = float(np.square(values - np.float64(mean)).sum())
        voxels = self.voxels + values.size
        apart = mean - self.mean
        self.mean += apart * values.size / voxels
        self.squares += squares + apart**2 * self.voxels * values.size / voxels
        self.voxels = voxels

    def add_zeros(self, count: int) -> None:
        """Add some values of 0."""
        if count:
            voxels = self.voxels + count
            self.squares += self.mean**2 * self.voxels * count / voxels
            self.mean *= self.voxels / voxels
            self.voxels = voxels

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 if no value was added."""
        return sqrt(self.squares / self.voxels) if self.voxels else 0.0

    def result(self) -> Fixed:
        """Return the normalization to mean 0 and standard deviation 1.

        Raises:
            InvalidInput: no value was added.
        """
        _check_some(self.voxels)
        return Fixed(self.mean, max(self.deviation, LEAST_DEVIATION))


class _Ranks:
    """Two percentiles of a map, from counts of keys that have the order of the values.

    The first pass counts the upper half of the keys, and the second one the lower half of those
    keys that are near a percentile.
    """

    def __init__(self, rule: Percentiles) -> None:
        self.rule = rule
        self.dtype = np.dtype(np.float32)
        self.counts = np.zeros(2**HALF, np.int64)
        self.below: dict[int, NDArray[np.int64]] = {}
        self.zeros = 0

    def add(self, values: Values) -> None:
        self.dtype = values.dtype
        self.counts += np.bincount(_keys(values) >> HALF, minlength=2**HALF)

    def add_zeros(self, count: int) -> None:
        """Add some values of 0; no others follow in this pass."""
        self.zeros = count
        self.counts[self._zero >> HALF] += count

    @property
    def _zero(self) -> int:
        """The key of 0."""
        return int(_keys(np.zeros(1, self.dtype))[0])

    def needs_second_pass(self) -> bool:
        _check_some(self.counts.sum())
        if self.dtype.itemsize > 2:
            self.below = {
                self._upper(rank): np.zeros(2**HALF, np.int64)
                for percentile in (self.rule.low, self.rule.high)
                for rank in self._around(percentile)
            }
            if self._zero >> HALF in self.below:
                self.below[self._zero >> HALF][self._zero & int(LOW)] = self.zeros
        return bool(self.below)

    def add_again(self, values: Values) -> None:
        keys = _keys(values)
        for upper in self.below:
            near = keys[keys >> HALF == upper] & LOW
            self.below[upper] += np.bincount(near, minlength=2**HALF)

    def result(self) -> Fixed:
        _check_some(self.counts.sum())
        low, high = map(self._percentile, (self.rule.low, self.rule.high))
        return Fixed(low, max(high - low, LEAST_DEVIATION))

    def _percentile(self, percentile: float) -> float:
        """Return a percentile, between two samples by linear interpolation."""
        position = percentile / 100 * (int(self.counts.sum()) - 1)
        before, after = map(self._sample, self._around(percentile))
        return before + (after - before) * (position - floor(position))

    def _around(self, percentile: float) -> tuple[int, int]:
        """Return the ranks of the samples before and after a percentile, from 0 on."""
        last = int(self.counts.sum()) - 1
        rank = floor(percentile / 100 * last)
        return rank, min(rank + 1, last)

    def _upper(self, rank: int) -> int:
        return int(np.searchsorted(self.counts.cumsum(), rank, side="right"))

    def _sample(self, rank: int) -> float:
        """Return the value of a rank."""
        upper = self._upper(rank)
        key = upper << HALF
        if upper in self.below:
            rest = rank - int(self.counts[:upper].sum())
            key |= int(np.searchsorted(self.below[upper].cumsum(), rest, side="right"))
        return _value(key, self.dtype)


def _check_some(voxels: int) -> None:
    if not voxels:
        raise InvalidInput(
            "the volume is 0 everywhere, and is to be normalized by its other values; give another "
            "volume"
        )


def _keys(values: Values) -> Keys:
    """Return keys in the order of the values; those of types of 16 bits have a lower half of 0."""
    if values.dtype.kind == "f":
        unsigned = values.view(np.dtype(f"u{values.itemsize}")).astype(np.uint32)
        unsigned <<= 8 * (4 - values.itemsize)
        # Negative floats are in descending order of their bits.
        return np.asarray(np.where(unsigned >> 31, ~unsigned, unsigned | np.uint32(2**31)))
    least = 2 ** (8 * values.itemsize - 1) * (values.dtype.kind == "i")
    return np.asarray((values.astype(np.int32) + least).astype(np.uint32) << HALF)


def _value(key: int, dtype: np.dtype[Any]) -> float:
    """Return the value of a key."""
    if dtype.kind == "f":
        bits = key - 2**31 if key >> 31 else ~key & (2**32 - 1)
        bits >>= 8 * (4 - dtype.itemsize)
        return float(np.array(bits, f"u{dtype.itemsize}").view(dtype))
    return float((key >> HALF) - 2 ** (8 * dtype.itemsize - 1) * (dtype.kind == "i"))


def _warn_of_borders(occupied: Sequence[Box], size: Vec3) -> None:
    """Warn of borders that nnU-Net cuts off before it normalizes and places windows."""
    borders = _around(occupied, size)
    if borders.size != size:
        log.warning(
            "all maps are 0 outside of %s. nnU-Net cuts such borders off before it normalizes and "
            "places windows: give input: {crop: nonzero} in the network file to get its values",
            borders,
        )


def _around(occupied: Sequence[Box], size: Vec3) -> Box:
    """Return the box around others, or the whole volume if there are none."""
    whole = Box(ZERO, size)
    return reduce(Box.hull, occupied) if occupied else whole


def _occupied(read: Values, box: Box) -> Box | None:
    """Return the part of a box around all voxels where a map is not 0."""
    part = occupied_box((read != 0).any(axis=0))
    return part.shifted(box.start) if part else None


def _blocks(
    volume: Volume, within: Within, look: bool = False
) -> Iterator[tuple[int, Box | None, Sequence[Values]]]:
    """Yield the voxels read so far, the part that is not 0 if looked for, and each map's values.

    They have a type of at most 16 bits, or float32, as the network sees them.
    """
    whole = Box(ZERO, volume.size)
    boxes = whole.cut(BLOCK._replace(z=max(1, BLOCK.z // volume.features)))

    def counting(box: Box) -> tuple[int, Box | None, list[Values]]:
        read = volume.read(box)
        if read.dtype == bool:
            read = read.view(np.uint8)
        elif read.dtype.itemsize > 2:
            with np.errstate(over="ignore"):
                read = read.astype(np.float32)
        read = read.astype(read.dtype.newbyteorder("="), copy=False)
        _check_finite(read, box)
        part = _occupied(read, box) if look else None
        if within == "all":
            return box.size.volume, part, [np.ascontiguousarray(one).ravel() for one in read]
        seen = (read != 0).any(axis=0)
        return box.size.volume, part, [one[seen] for one in read]

    with ThreadPoolExecutor(READERS) as pool:
        ahead = deque(pool.submit(counting, box) for box in islice(boxes, READERS))
        done = 0
        while ahead:
            voxels, part, values = ahead.popleft().result()
            done += voxels
            yield done, part, values
            ahead.extend(pool.submit(counting, box) for box in islice(boxes, 1))


def _check_finite(values: Values, box: Box) -> None:
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    first = np.unravel_index(np.isfinite(values).argmin(), values.shape)
    at = box.start + Vec3(*map(int, first[1:]))
    raise UnusableValues(
        f"the volume holds {values[first]} at voxel z={at.z}, y={at.y}, x={at.x}; replace what is "
        f"NaN, or infinite as float32, before normalizing by it",
        at,
    )
