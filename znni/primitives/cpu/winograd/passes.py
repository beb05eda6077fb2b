"""The three passes over a batch of strips: samples to points, products, and products to outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from znni.core.shapes import Vec3
from znni.primitives.common.codelets import Codelet
from znni.primitives.cpu.common.image_rows import (
    Finishing,
    line_positions,
    load_transposed,
    prefetch_rows,
    store_row,
    zero,
)
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.machine_code import has_wide_registers
from znni.primitives.cpu.common.phases import PhaseEmitter, PhaseKernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.common.vector_activation import Curve
from znni.primitives.cpu.fft_tiled.tile_drivers import SHARE_ARGUMENTS, Share
from znni.primitives.cpu.winograd.minimal_filtering import MinimalFiltering
from znni.primitives.cpu.winograd.strips import PASSES

FLOATS, INDICES, INDEX = Argument.FLOATS, Argument.INDICES, Argument.INDEX

Filterings = tuple[MinimalFiltering, MinimalFiltering, MinimalFiltering]

# Rows of a block of products for each number of groups of 16 output maps.
BLOCKS = {1: 24, 2: 12} if has_wide_registers() else {1: 5, 2: 2}

# Rows of a block if there are fewer. Alone, a row would wait for each of its sums.
FEW_ROWS = 4 if has_wide_registers() else 2


def _image_emitter(name: str, filterings: Filterings, own: bool) -> PhaseEmitter:
    """Return an emitter of a pass from or to an image."""
    algorithms = "_".join(
        f"{axis.taps}to{axis.outputs}" + f"by{axis.stride}" * (axis.stride > 1)
        for axis in filterings
    )
    arguments = SHARE_ARGUMENTS | {
        "spectra": _kind(own),
        **dict.fromkeys(("row_stride", "point_stride"), INDEX),
    }
    return PhaseEmitter(f"winograd_{name}_{algorithms}" + "_own" * own, **arguments)


def _kind(own: bool) -> Argument:
    """Return the kind of an argument for values: their place in the scratch, or their address."""
    return INDEX if own else FLOATS


def _values(emit: PhaseEmitter, name: str, own: bool) -> Value:
    """Return the address of the values that an argument names."""
    return emit.at(emit["scratch"], emit[name]) if own else emit[name]


@cached_kernel
def batch_pass() -> PhaseKernel:
    """Return a phase that does all three passes for a batch; a share is a batch.

    Its argument ``batches`` has a row for each batch. The three columns are the addresses of the
    arguments of the three passes.
    """
    emit = PhaseEmitter(
        "winograd_batch",
        **dict.fromkeys(("samples", "products", "results", "in_groups", "out_groups"), INDEX),
        batches=INDICES,
    )
    row = emit.times(emit["share"], PASSES)
    arguments = [
        emit.as_argument(emit.index_at(emit["batches"], emit.plus(row, i)), INDICES)
        for i in range(PASSES)
    ]
    with emit.loop(emit["in_groups"]) as group:
        emit.call(emit["samples"], [arguments[0], group, emit["scratch"]])
    emit.call(emit["products"], [arguments[1], emit.index(0), emit["scratch"]])
    with emit.loop(emit["out_groups"]) as group:
        emit.call(emit["results"], [arguments[2], group, emit["scratch"]])
    return emit.compile_phase()


class _Strip:
    """The scratch of a strip, (z, y, tile, x, lane), and its values at points.

    Args:
        emit: emitter of the pass.
        extents: values, or products, of a tile along z, y and x.
        across: tiles of the strip.
    """

    def __init__(self, emit: Emitter, extents: Vec3, across: int) -> None:
        self.emit = emit
        self.z, self.y, self.x = extents
        self.across = across
        self.row_floats = across * self.x * LANES
        self.plane_floats = self.y * self.row_floats

    def plane(self, z: Value) -> Value:
        """Return the address of a plane."""
        return self.emit.at(self.emit["scratch"], self.emit.times(z, self.plane_floats))

    @property
    def staging(self) -> Value:
        """The address of the scratch after the planes."""
        return self.plane(self.emit.index(self.z))

    def transform_y(self, plane: Value, codelet: Codelet) -> None:
        """Transform all columns of a plane in place."""
        emit = self.emit
        if self.y == 1:
            return
        with emit.loop(self.row_floats, step=LANES) as at:
            column = emit.at(plane, at)
            places = [emit.at(column, i * self.row_floats) for i in range(self.y)]
            codelet.evaluate(
                emit,
                read=lambda i: emit.load(places[i]),
                write=lambda i, value: emit.store(value, places[i]),
            )

    def transform_z(self, spectrum: Value, codelet: Codelet, *, into: bool) -> None:
        """Transform all columns along z, from the scratch into the values at points or back."""
        emit = self.emit
        with emit.loop(self.y) as y, emit.loop(self.across) as tile, emit.loop(self.x) as x:
            column = emit.times(emit.plus(emit.times(tile, self.x), x), LANES)
            column = emit.plus(column, emit.times(y, self.row_floats))
            point = emit.plus(emit.times(y, self.x), x)
            values = emit.at(spectrum, emit.times(tile, emit["row_stride"]))
            values = emit.at(values, emit.times(point, emit["point_stride"]))
            step = emit.times(emit["point_stride"], self.y * self.x)
            ours = [
                emit.at(emit.at(emit["scratch"], i * self.plane_floats), column)
                for i in range(self.z)
            ]
            points = [emit.at(values, emit.times(step, i)) for i in range(self.z)]
            source, target = (ours, points) if into else (points, ours)
            codelet.evaluate(
                emit,
                read=lambda i: emit.load(source[i]),
                write=lambda i, value: emit.store(value, target[i]),
            )


@cached_kernel
def samples_pass(filterings: Filterings, across: int, own: bool) -> PhaseKernel:
    """Return a phase that transforms strips of an image to values at points.

    Zeros replace missing planes, rows, voxels and maps.

    Args:
        filterings: the algorithms along z, y and x.
        across: tiles of a strip.
        own: True if the worker has its own values, in its scratch.
    """
    emit = _image_emitter(f"samples_{across}", filterings, own)
    z_axis, y_axis, x_axis = filterings
    extents = Vec3(z_axis.values, y_axis.values, x_axis.values)
    strip = _Strip(emit, extents, across)
    share = Share(emit, _values(emit, "spectra", own))
    width = across * x_axis.outputs * x_axis.stride
    length = width - x_axis.stride + x_axis.taps
    map_stride, y_stride, maps = share.image
    staging = strip.staging
    missing_x, missing_maps = emit.minus(emit["inner_x"], length), emit.minus(maps, LANES)
    staged = emit.smaller(missing_x, missing_maps), "<", emit.index(0)
    stride = emit.select(*staged, emit.index(length), map_stride)
    with emit.when(*staged):
        zero(emit, staging, emit.index(LANES * length))
    with share.tiles() as ([corner, *_], spectrum):
        with emit.loop(emit["inner_z"]) as z:
            plane = strip.plane(z)
            image = emit.at(corner, emit.times(z, emit["array_z_stride"]))
            with emit.loop(emit["inner_y"]) as y:
                row = emit.at(image, emit.times(y, y_stride))
                with emit.when(*staged), emit.loop(maps) as lane:
                    source = emit.at(row, emit.times(lane, map_stride))
                    target = emit.at(staging, emit.times(lane, length))
                    with emit.loop(emit["inner_x"]) as x:
                        emit.copy_float(emit.at(source, x), emit.at(target, x))
                # The next strip usually lies beside this one, and needs another cache line or two.
                ahead = range(length - 1, max(-1, length - 1 - width), -LANES)
                prefetch_rows(emit, emit.at(row, width), map_stride, maps, ahead, written=False)
                voxels = load_transposed(emit, emit.select(*staged, staging, row), stride, length)
                target = emit.at(plane, emit.times(y, strip.row_floats))
                for tile in range(across):
                    first, place = tile * x_axis.outputs * x_axis.stride, tile * x_axis.values
                    x_axis.samples.evaluate(
                        emit,
                        read=lambda i: voxels[first + i],  # noqa: B023 - evaluated at once
                        write=lambda i, value: emit.store(
                            value,
                            emit.at(target, (place + i) * LANES),  # noqa: B023
                        ),
                    )
            missing = emit.minus(emit.index(y_axis.values), emit["inner_y"])
            rest = emit.at(plane, emit.times(emit["inner_y"], strip.row_floats))
            zero(emit, rest, emit.times(missing, strip.row_floats))
            strip.transform_y(plane, y_axis.samples)
        with emit.loop(z_axis.values, emit["inner_z"]) as z:
            zero(emit, strip.plane(z), emit.index(strip.plane_floats))
        strip.transform_z(spectrum, z_axis.samples, into=True)
    return emit.compile_phase()


@cached_kernel
def results_pass(
    filterings: Filterings, across: int, own: bool, curve: Curve, *, adds: bool = False
) -> PhaseKernel:
    """Return a phase that transforms products back into strips, with bias and activation.

    Args:
        filterings: the algorithms along z, y and x.
        across: tiles of a strip.
        own: True if the worker has its own values, in its scratch.
        curve: curve of the activation.
        adds: True to add to the voxels of the image, before the activation.
    """
    emit = _image_emitter(f"results_{across}{curve}" + "_adding" * adds, filterings, own)
    z_axis, y_axis, x_axis = filterings
    extents = Vec3(z_axis.length, y_axis.length, x_axis.length)
    strip = _Strip(emit, extents, across)
    share = Share(emit, _values(emit, "spectra", own))
    width = across * x_axis.outputs
    map_stride, y_stride, maps = share.image
    bias, slope = share.finish
    finishing = Finishing(emit, bias, slope, emit["floor"], curve, adds)
    finish = finishing.across_maps()
    with share.tiles() as ([corner, skip_z, skip_y, skip_x], spectrum):
        # Lines are fetched before they are partly written. The transform along z takes as long.
        with emit.loop(emit["inner_z"], skip_z) as z, emit.loop(emit["inner_y"], skip_y) as y:
            row = emit.at(corner, emit.times(z, emit["array_z_stride"]))
            row = emit.at(row, emit.times(y, y_stride))
            prefetch_rows(emit, row, map_stride, maps, line_positions(width), written=True)
        strip.transform_z(spectrum, z_axis.results, into=False)
        span = skip_x, emit["inner_x"]
        with emit.loop(emit["inner_z"], skip_z) as z:
            plane = strip.plane(z)
            image = emit.at(corner, emit.times(z, emit["array_z_stride"]))
            strip.transform_y(plane, y_axis.results)
            with emit.loop(emit["inner_y"], skip_y) as y:
                row = emit.at(image, emit.times(y, y_stride))
                source = emit.at(plane, emit.times(y, strip.row_floats))
                voxels: dict[int, Value] = {}
                for tile in range(across):
                    first, place = tile * x_axis.outputs, tile * x_axis.length

                    def keep(
                        i: int, value: Value, first: int = first, voxels: dict[int, Value] = voxels
                    ) -> None:
                        voxels[first + i] = finish(value)

                    x_axis.results.evaluate(
                        emit,
                        read=lambda i: emit.load(
                            emit.at(source, (place + i) * LANES)  # noqa: B023
                        ),
                        write=keep,
                    )
                image_maps = map_stride, maps
                store_row(finishing, voxels, row, image_maps, strip.staging, width, span)
    return emit.compile_phase()


@cached_kernel
def products_pass(own: bool) -> PhaseKernel:
    """Return a phase that multiplies samples and kernels at points; a share is some points.

    Args:
        own: True if the worker has its own values, in its scratch.
    """
    emit = PhaseEmitter(
        "winograd_products" + "_own" * own,
        **dict.fromkeys(("samples", "products"), _kind(own)),
        **dict.fromkeys(
            ("samples_stride", "samples_row", "products_stride", "products_row"), INDEX
        ),
        kernels=FLOATS,
        **dict.fromkeys(("rows", "in_features", "groups", "points", "points_per_share"), INDEX),
        **dict.fromkeys(("values", "first_values"), INDICES),
    )
    groups, group_floats = emit["groups"], emit.times(emit["in_features"], LANES)
    most = max(BLOCKS)
    whole = emit.times(emit.quotient(groups, most), most)
    all_products = _values(emit, "products", own)
    with emit.part(emit["share"], emit["points_per_share"], emit["points"]) as point:
        products = emit.at(all_products, emit.times(point, emit["products_stride"]))
        first, stop = (
            emit.index_at(emit["first_values"], emit.plus(point, more)) for more in (0, 1)
        )
        for width, first_group, stop_group in ((most, emit.index(0), whole), (1, whole, groups)):
            with emit.loop(stop_group, first_group, width) as group:
                target = emit.at(products, emit.times(group, LANES))
                _rows(emit, _Terms(own, first, stop, group, width, group_floats), target)
    return emit.compile_phase()


class _Terms(NamedTuple):
    """The values that are multiplied by their kernels and added up at a point.

    Attributes:
        own: True if the worker has its own values, in its scratch.
        first: the place of the first of them in the list of values.
        stop: the place after the last.
        group: the first group of output maps.
        width: the number of groups.
        group_floats: the floats of the kernels of a value for a group.
    """

    own: bool
    first: Value
    stop: Value
    group: Value
    width: int
    group_floats: Value

    @contextmanager
    def each(self, emit: PhaseEmitter) -> Iterator[tuple[Value, list[Value]]]:
        """Repeat the code that is emitted meanwhile for each value.

        Yields:
            The address of the value's samples, and of its kernels for each group.
        """
        all_samples = _values(emit, "samples", self.own)
        with emit.loop(self.stop, self.first) as term:
            value = emit.index_at(emit["values"], term)
            samples = emit.at(all_samples, emit.times(value, emit["samples_stride"]))
            before = emit.plus(emit.times(value, emit["groups"]), self.group)
            kernels = emit.at(emit["kernels"], emit.times(before, self.group_floats))
            panels = [emit.at(kernels, emit.times(self.group_floats, i)) for i in range(self.width)]
            yield samples, panels


def _rows(emit: PhaseEmitter, terms: _Terms, target: Value) -> None:
    """Compute the products of all rows with the kernels of some groups, in the largest blocks.

    The last block is shifted back, so that its first rows are computed twice.
    """
    rows, nothing = emit["rows"], emit.index(0)
    heights = sorted({1, FEW_ROWS, BLOCKS[terms.width]})
    for height, higher in zip(heights, [*heights[1:], None], strict=True):
        stop = emit.select(rows, "<", emit.index(height), nothing, rows)
        if higher is not None:
            stop = emit.select(rows, "<", emit.index(higher), stop, nothing)
        with emit.loop(stop, step=height) as row:
            start = emit.smaller(row, emit.minus(rows, height))
            _block(emit, terms, target, start, height)


def _block(emit: PhaseEmitter, terms: _Terms, target: Value, start: Value, height: int) -> None:
    """Compute the products of a few rows with the kernels of some groups."""
    sums = {
        (row, i): emit.variable(emit.constant(0.0))
        for row in range(height)
        for i in range(terms.width)
    }
    with terms.each(emit) as (samples, panels):
        places = [
            emit.at(samples, emit.times(emit.plus(start, row), emit["samples_row"]))
            for row in range(height)
        ]
        with emit.loop(emit["in_features"]) as c:
            kernels = [emit.load(emit.at(panel, emit.times(c, LANES))) for panel in panels]
            for row, place in enumerate(places):
                value = emit.broadcast(emit.at(place, c))
                for i, kernel in enumerate(kernels):
                    total = sums[row, i]
                    total.set(emit.multiply_add(value, kernel, total.get()))
    for (row, i), total in sums.items():
        place = emit.at(target, emit.times(emit.plus(start, row), emit["products_row"]))
        emit.store(total.get(), emit.at(place, i * LANES))
