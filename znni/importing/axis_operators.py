"""PyTorch's operators that change the axes of a value, or their extents, as steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from znni.core.shapes import ONE, ZERO, Vec3
from znni.importing import checks
from znni.importing.calls import OperatorCall, Value
from znni.importing.margins import Unsuited
from znni.importing.steps import GraphStep, Layered, convolution
from znni.network.layers import ConvTranspose, Padding, PadLayer, Upsample
from znni.network.padding import Beyond

END = 2**62  # of a slice to the end of its axis
MOST_MAPS = 2**14  # that maps are mixed to

# Ways to pad, by the names of PyTorch and ONNX. None: with zeros.
MODES: dict[str, Beyond | None] = {
    "constant": None,
    "reflect": "reflect",
    "replicate": "edge",
    "edge": "edge",
    "circular": "wrap",
    "wrap": "wrap",
}


def axes_of_one(call: OperatorCall) -> None:
    """Read an operator that adds or takes away axes of globally pooled values."""
    if not call.held.is_pooled:
        call.refuse(
            "adds or takes away an axis; samples keep their axes (1, f, z, y, x) here, also in an "
            "output with one map; leave it out of the network's forward(), and export the network "
            "again"
        )
    call.same()


def reshaping(call: OperatorCall, size: object = None, shape: object = None) -> None:
    """Read ``view`` and ``reshape`` to the same axes, or of globally pooled values.

    Raises:
        InvalidInput: samples or maps would not stay in their axes.
    """
    given = shape if size is None else size
    axes = given if isinstance(given, list) else [given]
    own = call.held.shape
    fits = len(axes) == len(own) or (call.held.is_pooled and len(axes) > 1)
    known = zip(axes, own if len(axes) == len(own) else (*own[:2], *(1,) * 9), strict=False)
    if not fits or any(axis not in (-1, extent) for axis, extent in known):
        call.cannot_express(
            f"changes the axes of {own} to {tuple(axes)}; only globally "
            f"pooled values change their axes here, and keep their maps: {checks.LAYERS}"
        )
    call.same()


def expansion(call: OperatorCall, size: object = None, other: object = None) -> None:
    """Read ``expand``, which may repeat a single map, or the sample of a globally pooled value."""
    held, axes = call.held, size
    if isinstance(other, Value):  # expand_as
        axes = call.tracer.values[other.name].shape
    new = [*[-1] * (5 - len(axes)), *axes] if isinstance(axes, list | tuple) else []
    fits = len(new) == 5 and all(
        wanted in (-1, own)
        or (own == 1 and wanted > 1 and (axis == 1 or (axis > 1 and held.is_pooled)))
        for axis, (own, wanted) in enumerate(zip(held.shape, new, strict=True))
    )
    if not fits:
        call.refuse(f"expands {held.shape} to {axes}; only maps are repeated here")
    if new[1] in (-1, held.maps):
        call.same()
    else:
        call.add(repeated(call, call.read, new[1]))


def repetition(call: OperatorCall, repeats: object) -> None:
    """Read ``repeat`` of maps."""
    if not isinstance(repeats, list) or len(repeats) != 5 or [repeats[0], *repeats[2:]] != [1] * 4:
        call.refuse(f"repeats axes {repeats}; only maps are repeated here")
    times = checks.count(call.origin, "repeats", repeats[1])
    call.add(repeated(call, call.read, times))


def repeated(call: OperatorCall, read: str, times: int) -> Layered:
    """Return a convolution that repeats all maps of a value.

    Raises:
        InvalidInput: there are too many.
    """
    maps = call.tracer.values[read].maps
    if times * maps > MOST_MAPS:
        call.refuse(f"repeats maps {times} times; give less than {MOST_MAPS} maps")
    return _mixed(call, np.tile(np.eye(maps), (times, 1)))


def _mixed(
    call: OperatorCall, factors: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> Layered:
    """Return a convolution that makes each map from those of a value, by factors (out, in)."""
    return convolution(call.origin, factors[:, :, None, None, None])


def slicing(
    call: OperatorCall, dim: object = 0, start: object = None, end: object = None, step: object = 1
) -> None:
    """Read ``slice``."""
    given = (dim, 0 if start is None else start, END if end is None else end, step)
    axis, first, last, by = (checks.integer(call.origin, "bounds", bound) for bound in given)
    _slice(call, axis, first, last, by)


def splitting(
    call: OperatorCall,
    maps: int,
    dim: object = 0,
    chunks: object = None,
    split_size: object = None,
    split_sizes: object = None,
) -> None:
    """Read ``split``, ``split_with_sizes`` and ``chunk`` along the maps."""
    origin = call.origin
    if dim not in (1, -4):
        call.refuse(f"splits axis {dim}; only maps are split here: axis 1")
    size = split_size if chunks is None else -(-maps // checks.count(origin, "chunks", chunks))
    if isinstance(split_sizes, list):
        parts = [checks.count(origin, "split_sizes", part) for part in split_sizes]
    else:
        each = checks.count(origin, "split_size", size)
        parts = [min(each, maps - start) for start in range(0, maps, each)]
    if len(parts) != len(call.results):
        call.refuse(f"gives {len(call.results)} parts of {parts}; export it again")
    ends = np.cumsum(parts).tolist()
    for part, end, result in zip(parts, ends, call.results, strict=True):
        _slice(call, 1, end - part, end, 1, result)


def _slice(
    call: OperatorCall, axis: int, start: int, stop: int, step: int, result: str = ""
) -> None:
    """Add a slice of an array (n, f, z, y, x), as Python slices it.

    Raises:
        InvalidInput: it is of no axis of maps or voxels, or it steps backwards.
    """
    axis = axis + 5 if axis < 0 else axis
    if not 0 <= axis < 5 or step < 1:
        call.refuse(f"slices axis {axis} by {step}; give axis 1 to 4, and a step from 1 on")
    length = call.held.shape[axis]
    kept = range(*slice(start, stop, step).indices(max(length, 0)))
    if len(kept) == length:
        call.tracer.same(call.origin, call.read, result or call.result)
    elif axis == 0 or not kept:
        call.refuse(f"takes {len(kept)} of {length} along axis {axis}; give a whole batch")
    elif axis == 1:
        call.add(_mixed(call, np.eye(length)[kept.start : kept.stop : kept.step]), value=result)
    elif step == 1:
        ends = [(0, 0)] * 3
        ends[axis - 2] = (kept.start, length - kept.stop)
        cut = Padding(*(Vec3(*side) for side in zip(*ends, strict=True)))
        call.tracer.crop(call.origin, call.read, result or call.result, cut)
    else:
        _thin(call, axis - 2, kept)


def _thin(call: OperatorCall, axis: int, kept: range) -> None:
    """Undo nearest upsampling along an axis by a slice of every so many samples."""
    match call.tracer.maker(call.read):
        case GraphStep(operation=Layered(layer=Upsample(mode="nearest") as made), reads=reads):
            by = list(made.factor)
            if by[axis] % kept.step == 0 and len(kept) * kept.step == call.held.size[axis]:
                by[axis] //= kept.step
                call.add(Layered(Upsample(f"{made.name}, {call.origin}", Vec3(*by))), *reads)
                return
    call.cannot_express(
        f"takes every {kept.step}th sample along axis {'zyx'[axis]}; give the layer before it "
        f"a stride"
    )


def padding(
    call: OperatorCall, pad: object, mode: object = "constant", value: object = None
) -> None:
    """Read ``pad``; negative numbers of samples crop.

    Raises:
        InvalidInput: samples are added that are another constant than zero.
    """
    _pad(call, pad, mode, value)


def _pad(call: OperatorCall, pad: object, mode: object, value: object = None) -> None:
    listed = pad if isinstance(pad, list) else []
    given = [checks.integer(call.origin, "padding", side) for side in listed]
    if len(given) % 2 or len(given) > 6:
        call.refuse(f"pads {given}; only the three axes of voxels are padded here")
    given += [0] * (6 - len(given))  # the last axis comes first
    before, after = Vec3(*given[4::-2]), Vec3(*given[5::-2])
    added = Padding(before.maximum(ZERO), after.maximum(ZERO))
    if added.total != ZERO and (mode not in MODES or (mode == "constant" and value)):
        call.cannot_express(
            f"puts {added.before} samples before and {added.after} after its input that "
            f"are no zeros; pad with zeros or with the input's own samples, and train again"
        )
    read = call.read
    cut = Padding(ZERO - before.minimum(ZERO), ZERO - after.minimum(ZERO))
    if cut.total != ZERO:
        read = call.tracer.fresh()
        call.tracer.crop(call.origin, call.read, read, cut)
    if added.total != ZERO and (beyond := MODES[str(mode)]):
        call.add(Layered(PadLayer(call.origin, added, beyond)), read)
    elif added.total != ZERO:
        call.tracer.pad(call.origin, read, call.result, added)
    else:
        call.same(read)


def reflection(call: OperatorCall, padding: object) -> None:
    """Read ``reflection_pad3d``."""
    _pad(call, padding, "reflect")


def replication(call: OperatorCall, padding: object) -> None:
    """Read ``replication_pad3d``."""
    _pad(call, padding, "replicate")


def resizing(
    call: OperatorCall,
    method: Literal["nearest", "trilinear"],
    output_size: object = None,
    scale_factors: Sequence[object] | None = None,
    scales_d: object = None,
    scales_h: object = None,
    scales_w: object = None,
    align_corners: object = False,
) -> None:
    """Read an upsampling by whole factors or to a size; both ways of rounding are the same.

    Raises:
        InvalidInput: the factors are not whole, or corners are aligned.
    """
    if align_corners:
        call.cannot_express(
            f"has align_corners, and so {checks.WINDOWS}; train it with align_corners=False"
        )
    if scale_factors is None and scales_d is not None:
        scale_factors = [scales_d, scales_h, scales_w]
    read, by = call.read, ONE
    if scale_factors is not None:
        factors = [checks.number(call.origin, "factor", factor) for factor in scale_factors]
        if len(factors) != 3 or any(factor < 1 or factor % 1 for factor in factors):
            call.refuse(
                f"resizes by {factors}; only whole factors are represented: use these, "
                f"and poolings or strided convolutions to make values smaller"
            )
        by = Vec3(*map(int, factors))
    elif output_size is not None:
        size = checks.extents(call.origin, "size", output_size)
        by, shift = _factors(call, method, size)
        if shift != ZERO:
            read = call.aside(Layered(Upsample(call.origin, ONE, shift=shift)))
    else:
        call.refuse("has neither factors nor a size; export it again")
    if by == ONE:
        call.same(read)
    else:
        call.add(Layered(Upsample(call.origin, by, method)), read)


def _factors(call: OperatorCall, method: str, size: Vec3) -> tuple[Vec3, Vec3]:
    """Return the factors and the shift that resize a value to a size.

    Nearest resizing by one sample repeats the first one. Transposed convolutions that give one
    sample too few are followed by it. If they give a single one, a factor would do so, too.
    """
    have, maker = call.held.size, call.tracer.maker(call.read)
    may_shift = method == "nearest" and min(have) > 0
    made = maker and maker.operation
    from_one = isinstance(made, Layered) and isinstance(made.layer, ConvTranspose)
    shift = Vec3(
        *(
            int(may_shift and wanted == held + 1 and (held > 1 or from_one))
            for held, wanted in zip(have, size, strict=True)
        )
    )
    rest = size - shift
    if min(have) < 1 or min(rest) < 1 or rest % have != ZERO:
        raise Unsuited(
            f"{call.origin} resizes {have} to {size}, and only whole factors are represented; "
            f"export it for an input whose extents are multiples of all its poolings"
        )
    return rest // have, shift
