"""The loops of a direct convolution with immediate pooling: 16 output maps to a vector.

All sums under one pooling window are kept together, in registers if these are wide enough. Each
input voxel under them is read once and added to every sum that has a tap there. Only the maximum
of the sums is stored.
"""

from __future__ import annotations

from functools import reduce

from znni.core.shapes import Vec3, offsets
from znni.primitives.cpu.common.image_rows import image_parameters, store_transposed
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.phases import PhaseEmitter, PhaseKernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.common.vector_activation import Curve, finished

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX

# Floats of scratch of one worker: pooled voxels of 16 maps.
SCRATCH_FLOATS = LANES * LANES

# Arguments of the loops. A share is an output row of any plane of any image.
ARGUMENTS = {
    **image_parameters("source"),
    "in_features": INDEX,
    **image_parameters("target"),
    **dict.fromkeys(("out_features", "out_z", "out_y", "out_x"), INDEX),
    "weights": FLOATS,  # (group of output maps, input map, tap, lane)
    "bias": FLOATS,  # for whole groups
    "slope": FLOATS,
    "floor": FLOATS,
}


@cached_kernel
def pooled_taps(kernel: Vec3, window: Vec3, curve: Curve) -> PhaseKernel:
    """Return a phase that computes rows of output maps."""
    emit = PhaseEmitter(f"pooled_taps_{kernel}_{window}{curve}", **ARGUMENTS)
    plane, y = _divided(emit, emit["share"], emit["out_y"])
    n, z = _divided(emit, plane, emit["out_z"])
    source = emit.at(emit["source"], emit.times(n, emit["source_image_stride"]))
    source = emit.at(source, emit.times(emit.times(z, window.z), emit["source_z_stride"]))
    target = emit.at(emit["target"], emit.times(n, emit["target_image_stride"]))
    target = emit.at(target, emit.times(z, emit["target_z_stride"]))
    with (
        emit.loop(emit["out_features"], step=LANES) as feature,
        emit.loop(emit["out_x"], step=LANES) as first,
    ):
        rows = emit.at(source, emit.times(emit.times(y, window.y), emit["source_y_stride"]))
        count = emit.smaller(emit.minus(emit["out_x"], first), LANES)
        finish = [emit.load(emit.at(emit[name], feature)) for name in ("bias", "slope")]
        finish.append(emit.load(emit["floor"]))
        with emit.loop(count) as x:
            corner = emit.at(rows, emit.times(emit.plus(first, x), window.x))
            largest = _pooled_voxel(emit, kernel, window, corner, feature)
            value = finished(emit, largest, finish, curve)
            emit.store(value, emit.at(emit["scratch"], emit.times(x, LANES)))
        row = emit.at(target, emit.times(y, emit["target_y_stride"]))
        row = emit.at(row, emit.times(feature, emit["target_map_stride"]))
        voxels = {x: emit.load(emit.at(emit["scratch"], x * LANES)) for x in range(LANES)}
        stride, span = emit["target_map_stride"], (emit.index(0), count)
        maps = emit.minus(emit["out_features"], feature)
        store_transposed(emit, voxels, emit.at(row, first), stride, span, maps)
    return emit.compile_phase()


def _divided(emit: Emitter, number: Value, by: Value) -> tuple[Value, Value]:
    quotient = emit.quotient(number, by)
    return quotient, emit.minus(number, emit.times(quotient, by))


def _pooled_voxel(
    emit: Emitter, kernel: Vec3, window: Vec3, corner: Value, feature: Value
) -> Value:
    """Return the maximum of 16 maps over the window whose sums see the input from ``corner``."""
    taps = {tap: i for i, tap in enumerate(offsets(kernel))}
    sums = {place: emit.variable(emit.constant(0.0)) for place in offsets(window)}
    group = emit.at(
        emit["weights"], emit.times(emit.times(feature, emit["in_features"]), kernel.volume)
    )
    with emit.loop(emit["in_features"]) as c:
        image = emit.at(corner, emit.times(c, emit["source_map_stride"]))
        weights = emit.at(group, emit.times(c, kernel.volume * LANES))
        for at in offsets(kernel + window - 1):
            plane = emit.at(image, emit.times(emit["source_z_stride"], at.z))
            row = emit.at(plane, emit.times(emit["source_y_stride"], at.y))
            value = emit.broadcast(emit.at(row, at.x))
            for place, total in sums.items():
                if (tap := at - place) in taps:
                    weight = emit.load(emit.at(weights, taps[tap] * LANES))
                    total.set(emit.multiply_add(value, weight, total.get()))
    return reduce(emit.larger, (total.get() for total in sums.values()))
