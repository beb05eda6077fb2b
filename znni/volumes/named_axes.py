"""Arrays with named axes in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.array_like import ArrayLike
from znni.core.errors import SAVE_AS_Z, InvalidInput, option
from znni.core.option_types import MapOverTime, Moment
from znni.core.text import counted

ORDER = "czyx"
ONE_MAP = "the axis of one map"
ALL = slice(None)
AXES = ("(z, y, x) or (f, z, y, x)", "(t, z, y, x) or (t, c, z, y, x)")  # without and with time


class NamedAxes:
    """An array with named axes, seen as (c, z, y, x).

    Axes that a volume does not have must have the extent 1, except for time if a point of it is
    chosen. A missing c or z axis gets the extent 1; y and x are required.

    Args:
        axes: names of its axes.
        name: its name, for messages.
        time: the chosen point in time; ``all``: the points in time are the maps. ``MapOverTime``:
            so are those of one map.
        maps: names of the maps; empty if they have none.

    Attributes:
        shape: extents (c, z, y, x).
        dtype: type of the values.
        maps: names of the maps.
        pieces: extents (c, z, y, x) of the pieces that threads may read at the same time, if the
            array has such pieces.

    Raises:
        InvalidInput: the names do not match the array, or it holds more than one volume, or no such
            point in time.
    """

    def __init__(
        self,
        array: ArrayLike,
        axes: Sequence[str],
        name: str,
        time: Moment | None = None,
        maps: Sequence[str] = (),
    ) -> None:
        given = f"{name} has axes ({', '.join(axes)})"
        if len(axes) != len(array.shape):
            raise InvalidInput(
                f"{given} and shape {array.shape}; its metadata must name each axis once"
            )
        if len(set(axes)) < len(axes) or not {"y", "x"} <= set(axes):
            raise InvalidInput(f"{given}; a volume needs y and x, and each axis once; rename them")
        extents = dict(zip(axes, array.shape, strict=True))
        point = None if time == "all" or isinstance(time, MapOverTime) else time
        chosen = {"t": point or 0}
        if isinstance(time, MapOverTime):
            chosen[ONE_MAP] = time.number
        if isinstance(time, MapOverTime) or (time == "all" and "t" in axes):
            if time == "all":
                _check_one_map(given, extents.get("c", 1))
            renamed = {"t": "c", "c": ONE_MAP}
            axes, maps = [renamed.get(axis, axis) for axis in axes], ()
            extents = dict(zip(axes, array.shape, strict=True))
        if point is not None and not 0 <= point < extents.get("t", 1):
            raise InvalidInput(
                f"{option('time', point)}: {given}, and {counted(extents.get('t', 1), 'point')} in "
                f"time; give a number from 0 to {extents.get('t', 1) - 1}"
            )
        for axis, extent in extents.items():
            if axis == "t" and extent != 1 and point is None:
                planes = f"; {SAVE_AS_Z}" * ("z" not in axes)
                raise InvalidInput(
                    f"{given}, and {extent} points in time along t; a run takes one: choose it "
                    f"with {option('time', 0)} to {extent - 1}, or give {option('time', 'all')} if "
                    f"they are the maps that the network takes{planes}"
                )
            if axis not in ORDER and axis not in chosen and extent != 1:
                raise InvalidInput(
                    f"{given}, and {extent} positions along {axis}; a run takes one: save it as a "
                    f"volume of its own, or from Python give it as an array"
                )
        self.maps = tuple(maps) if len(maps) == extents.get("c", 1) else ()
        self._array = array
        places = (chosen.get(axis, 0) for axis in axes)
        self._parts = [
            ORDER.index(axis) if axis in ORDER else slice(place, place + 1)
            for axis, place in zip(axes, places, strict=True)
        ]
        self._dropped = tuple(ALL if axis in ORDER else 0 for axis in axes)
        kept = [axis for axis in axes if axis in ORDER]
        self._order = [kept.index(axis) for axis in ORDER if axis in kept]
        self._expanded = tuple(ALL if axis in kept else np.newaxis for axis in ORDER)
        self.shape = tuple(extents.get(axis, 1) for axis in ORDER)
        self.dtype = array.dtype
        pieces = getattr(array, "pieces", None)
        by_axis = dict(zip(axes, pieces or (), strict=bool(pieces)))
        self.pieces = tuple(by_axis.get(axis, 1) for axis in ORDER) if pieces else None

    def __getitem__(self, key: tuple[slice, slice, slice, slice], /) -> NDArray[Any]:
        """Return the values (c, z, y, x) of four slices."""
        parts = tuple(key[part] if isinstance(part, int) else part for part in self._parts)
        block = np.asarray(self._array[parts])[self._dropped].transpose(self._order)
        return block[self._expanded]


def _check_one_map(given: str, maps: int) -> None:
    """Refuse points in time as maps if each has several maps."""
    if maps != 1:
        raise InvalidInput(
            f"{option('time', 'all')}: {given}, and {counted(maps, 'map')} at each point in time; "
            f"choose one of them, as {option('channel', 0)}, or one point, as {option('time', 0)}"
        )


def at_time(
    array: ArrayLike, name: str, time: Moment | None, maps: Sequence[str] = ()
) -> ArrayLike:
    """Return an array without names of its axes, at a point in time if one is chosen.

    Then its axes are (t, z, y, x) or (t, c, z, y, x).

    Raises:
        InvalidInput: the array has another number of axes, or no such point in time.
    """
    if time is None:
        is_named = maps and len(array.shape) == len(ORDER)
        return NamedAxes(array, ORDER, name, maps=maps) if is_named else array
    axes = {4: "tzyx", 5: "tczyx"}.get(len(array.shape))
    if axes is None:
        raise InvalidInput(
            f"{option('time', time)}: {name} has shape {array.shape}; with time, its axes are "
            f"{AXES[1]}"
        )
    return NamedAxes(array, axes, name, time, maps)
