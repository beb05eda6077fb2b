"""Kernels of pooled convolutions: transforms of few maps, products of spectra, and pooled rows.

The input has few maps, which are transformed with 16 positions along z in a vector. The inverse
transform forms the products with the kernels' spectra as it reads its columns, so that no output
spectrum is ever stored. Rows under the same pooling windows are combined while they are vectors
across maps.
"""

from __future__ import annotations

from math import inf

from znni.primitives.cpu.common.image_rows import store_transposed
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.common.vector_activation import Curve, finished
from znni.primitives.cpu.fft_tiled.number_formats import NUMBER
from znni.primitives.cpu.fft_tiled.tile_transform import column_codelet, inverse_row_codelet

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX


def block_floats(length: int, features: int) -> int:
    """Return the floats of the spectra of 16 columns: (map, fz, part, column)."""
    return features * length * 2 * LANES


@cached_kernel
def lane_columns(length: int) -> Kernel:
    """Return a transform along z of 16 columns of planes (y, fx, part, lane) whose lanes are z.

    The kernel's argument ``place`` is the address of the columns in the first plane. Each further
    plane holds 16 further z, and lies ``plane_stride`` on. Results go to ``values`` (fz, part,
    column); ``turned`` is scratch.
    """
    emit = Emitter(
        f"lane_columns_{length}", place=FLOATS, plane_stride=INDEX, values=FLOATS, turned=FLOATS
    )
    for first in range(0, length, LANES):
        plane = emit.at(emit["place"], emit.times(emit["plane_stride"], first // LANES))
        for part in range(2):
            columns = [
                emit.load(emit.at(plane, column * NUMBER + part * LANES)) for column in range(LANES)
            ]
            for z, values in enumerate(emit.transpose(columns)[: length - first], first):
                emit.store(values, emit.at(emit["turned"], (2 * z + part) * LANES))
    column_codelet(length, -1, length).evaluate(
        emit,
        read=lambda i: emit.load(emit.at(emit["turned"], i * LANES)),
        write=lambda i, value: emit.store(value, emit.at(emit["values"], i * LANES)),
    )
    return emit.compile()


@cached_kernel
def product_columns(length: int, outputs: int, features: int) -> Kernel:
    """Return a kernel for products of a tile's spectra with kernels', transformed back along z.

    Its argument ``values`` (block of columns, map, fz, part, column) has the tile's spectra. Its
    argument ``kernels`` (column, fz, map, part, lane) has the spectra of 16 output maps' kernels.

    Args:
        length: length of the axis.
        outputs: number of outputs computed in each column, from its first on.
        features: number of input maps, over which products are summed.
    """
    emit = Emitter(
        f"product_columns_{length}_{outputs}_{features}",
        **dict.fromkeys(("values", "kernels", "target"), FLOATS),
        **dict.fromkeys(("target_stride", "count"), INDEX),
    )
    with emit.loop(emit["count"]) as i:
        block = emit.quotient(i, LANES)
        lane = emit.minus(i, emit.times(block, LANES))
        values = emit.at(emit["values"], emit.times(block, block_floats(length, features)))
        values = emit.at(values, lane)
        kernels = emit.at(emit["kernels"], emit.times(i, length * features * NUMBER))
        target = emit.at(emit["target"], emit.times(i, NUMBER))
        targets = [emit.at(target, emit.times(emit["target_stride"], j)) for j in range(outputs)]

        def read(part: int, values: Value = values, kernels: Value = kernels) -> Value:
            fz, imaginary = divmod(part, 2)
            total = emit.constant(0.0)
            for c in range(features):
                at = (c * length + fz) * 2 * LANES
                real_value, imaginary_value = (
                    emit.broadcast(emit.at(values, at + i * LANES)) for i in range(2)
                )
                kernel = emit.at(kernels, (fz * features + c) * NUMBER)
                same, other = (
                    emit.load(emit.at(kernel, i * LANES)) for i in (imaginary, 1 - imaginary)
                )
                turned = imaginary_value if imaginary else emit.negate(imaginary_value)
                total = emit.multiply_add(real_value, same, total)
                total = emit.multiply_add(turned, other, total)
            return total

        def write(part: int, value: Value, targets: list[Value] = targets) -> None:
            emit.store(value, emit.at(targets[part // 2], part % 2 * LANES))

        column_codelet(length, 1, outputs).evaluate(emit, read, write)
    return emit.compile()


@cached_kernel
def largest_row(length: int, outputs: int) -> Kernel:
    """Return an inverse transform of a row along x that updates the largest values so far.

    The kernel's arguments are ``row`` (fx, part, lane) and ``largest`` (x, lane).

    No NaN of the input is lost, because it has made the whole tile NaN. An infinite voxel makes
    NaNs and infinities in a tile, as in every transform, and the two are not told apart.
    """
    emit = Emitter(f"largest_row_{length}_{outputs}", row=FLOATS, largest=FLOATS)

    def write(x: int, value: Value) -> None:
        target = emit.at(emit["largest"], x * LANES)
        emit.store(emit.at_least(value, emit.load(target)), target)

    inverse_row_codelet(length, outputs).evaluate(
        emit, lambda i: emit.load(emit.at(emit["row"], i * LANES)), write
    )
    return emit.compile()


@cached_kernel
def pooled_row(window: int, outputs: int, curve: Curve) -> Kernel:
    """Return a kernel that stores the largest of each window along x in rows of 16 maps.

    It adds the bias and applies the activation. It then sets the values read to minus infinity,
    for the next row.

    Args:
        window: extent of the window along x.
        outputs: number of voxels computed, from the row's first on.
        curve: curve of the activation.
    """
    emit = Emitter(
        f"pooled_row_{window}_{outputs}{curve}",
        **dict.fromkeys(("largest", "image"), FLOATS),
        **dict.fromkeys(("map_stride", "maps", "skip_x", "inner_x"), INDEX),
        **dict.fromkeys(("bias", "slope", "floor"), FLOATS),
    )
    finish = [emit.load(emit[name]) for name in ("bias", "slope", "floor")]
    voxels: dict[int, Value] = {}
    for x in range(outputs):
        largest = emit.constant(-inf)
        for i in range(window):
            address = emit.at(emit["largest"], (x * window + i) * LANES)
            largest = emit.at_least(emit.load(address), largest)
            emit.store(emit.constant(-inf), address)
        voxels[x] = finished(emit, largest, finish, curve)
    span = emit["skip_x"], emit["inner_x"]
    store_transposed(emit, voxels, emit["image"], emit["map_stride"], span, emit["maps"])
    return emit.compile()
