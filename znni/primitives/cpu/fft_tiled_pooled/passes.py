"""What a pooled convolution does otherwise than a plain one: few maps, products, and rows.

The input's maps are few, and are transformed with 16 positions along z in a vector. The products
with the kernels' spectra are formed as the inverse transform reads its columns, so that no
spectrum of an output is ever stored. Rows under the same pooling windows meet while they are
vectors across maps.
"""

from __future__ import annotations

from functools import cache
from math import inf

from znni.primitives.cpu.common.image_rows import store_transposed
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.fft_tiled.number_formats import NUMBER
from znni.primitives.cpu.fft_tiled.tile_transform import column_codelet, inverse_row_codelet

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX


def block_floats(length: int, features: int) -> int:
    """Floats of the spectra of 16 columns: (map, fz, part, column)."""
    return features * length * 2 * LANES


@cache
def lane_columns(length: int) -> Kernel:
    """The transform along z of 16 columns of planes (y, fx, part, lane) whose lanes are z.

    Args of the kernel: ``place`` of the columns in the first plane; the others, of 16 further z
    each, lie ``plane_stride`` on. ``values`` (fz, part, column), ``turned`` is scratch.
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


@cache
def product_columns(length: int, outputs: int, features: int) -> Kernel:
    """Products of a tile's spectra with kernels', and their inverse transform along z.

    Args:
        length: of the axis.
        outputs: computed of each column, from its first on.
        features: input maps, over which products are summed.

    Args of the kernel: ``values`` (block of columns, map, fz, part, column) has the tile's
    spectra, ``kernels`` (column, fz, map, part, lane) those of 16 output maps' kernels.
    """
    emit = Emitter(
        f"product_columns_{length}_{outputs}_{features}",
        values=FLOATS,
        kernels=FLOATS,
        target=FLOATS,
        target_stride=INDEX,
        count=INDEX,
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


@cache
def largest_row(length: int, outputs: int) -> Kernel:
    """The inverse transform of a row along x: keeps the larger of it and what is there already.

    A NaN in the input has made NaNs of the whole tile, so that none is lost. An infinite voxel
    makes NaNs and infinities of a tile, as in every transform, and the two are not kept apart.

    Args of the kernel: ``row`` (fx, part, lane), ``largest`` (x, lane).
    """
    emit = Emitter(f"largest_row_{length}_{outputs}", row=FLOATS, largest=FLOATS)

    def write(x: int, value: Value) -> None:
        target = emit.at(emit["largest"], x * LANES)
        emit.store(emit.at_least(value, emit.load(target)), target)

    inverse_row_codelet(length, outputs).evaluate(
        emit, lambda i: emit.load(emit.at(emit["row"], i * LANES)), write
    )
    return emit.compile()


@cache
def pooled_row(window: int, outputs: int) -> Kernel:
    """The largest of every window along x to a row of an image of 16 maps, with bias and floor.

    What it has read is set to minus infinity, for the next row.

    Args:
        window: extent along x.
        outputs: voxels computed, from the row's first on.
    """
    emit = Emitter(
        f"pooled_row_{window}_{outputs}",
        largest=FLOATS,
        image=FLOATS,
        map_stride=INDEX,
        maps=INDEX,
        skip_x=INDEX,
        inner_x=INDEX,
        bias=FLOATS,
        floor=FLOATS,
    )
    bias, floor = emit.load(emit["bias"]), emit.load(emit["floor"])
    voxels: dict[int, Value] = {}
    for x in range(outputs):
        largest = emit.constant(-inf)
        for i in range(window):
            address = emit.at(emit["largest"], (x * window + i) * LANES)
            largest = emit.at_least(emit.load(address), largest)
            emit.store(emit.constant(-inf), address)
        voxels[x] = emit.at_least(emit.add(largest, bias), floor)
    span = emit["skip_x"], emit["inner_x"]
    store_transposed(emit, voxels, emit["image"], emit["map_stride"], span, emit["maps"])
    return emit.compile()
