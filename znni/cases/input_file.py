"""The file of the network's input: the scan, normalized and resampled.

It is written slab by slab, by ``input_slabs.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.cases.input_slabs import image_slabs
from znni.cases.npy_file import new_array_file
from znni.cases.preparation import Preparation, rules_of
from znni.cases.scan import Scan
from znni.cases.slabs import ROOM
from znni.cases.values import change_values, changed_bytes
from znni.core.shapes import FLOAT_BYTES, ZERO, Box
from znni.engine.reading import read_input
from znni.engine.run_state import Progress, no_progress
from znni.engine.tiles import Job
from znni.network.weights import Float32
from znni.resampling.box_resampling import bounds_of, resample


def write_input(
    scan: Scan,
    prepared: Preparation,
    path: Path,
    threads: int,
    progress: Progress = no_progress,
    room: int = ROOM,
) -> None:
    """Write the network's input to a ``.npy`` file, float32 (f, z, y, x).

    The file gets its name when it is complete.

    Raises:
        UnusableValues: a value is NaN, or infinite as float32.
    """
    resampling, maps = prepared.image, scan.volume.features
    slabs = image_slabs(scan.volume, resampling, threads, room)
    bounds = _bounds(scan, prepared, slabs.bound_planes) if slabs.clips else None
    plane = FLOAT_BYTES * resampling.target.y * resampling.target.x
    with new_array_file(path, "<f4", (maps, *resampling.target)) as file:
        begin, done = file.tell(), 0
        boxes, target = list(slabs.boxes), Buffer()
        needed = [resampling.source_box(box) for box in boxes]
        read = read_ahead(scan, prepared, needed)
        for box, source, normal in zip(boxes, needed, read, strict=True):
            made = normal
            if resampling.changes:
                out = target((maps, *box.size))
                made = resample(
                    normal, source.start, resampling, box, threads=threads, bounds=bounds, out=out
                )
            for index, values in enumerate(made):
                row = FLOAT_BYTES * box.start.y * box.size.x  # 0 unless a slab is a part of a plane
                file.seek(begin + plane * (index * resampling.target.z + box.start.z) + row)
                file.write(np.ascontiguousarray(values, "<f4").data)
            done += box.size.volume
            progress(done, resampling.target.volume)
        file.flush()
        change_values(Path(file.name), rules_of(prepared.network).values)


class Buffer:
    """Memory for one array after another. To touch fresh pages would take longer than the work."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an array. A float32 array lies in the memory of the one before."""
        if dtype != np.float32:
            return np.empty(shape, dtype)
        values = prod(shape)
        if len(self._memory) < values:
            self._memory = np.empty(values, np.float32)
        return self._memory[:values].reshape(shape)


def read_ahead(scan: Scan, prepared: Preparation, boxes: Sequence[Box]) -> Iterator[Float32]:
    """Yield the normalized values of boxes of the crop, while a thread reads the next box.

    The values of a box are valid until the next ones are yielded.
    """
    buffers = Buffer(), Buffer()
    with ThreadPoolExecutor(1, "znni-scan") as thread:

        def read(index: int) -> Future[Float32]:
            return thread.submit(read_scaled, scan, prepared, boxes[index], buffers[index % 2])

        following = read(0)
        for index in range(len(boxes)):
            values = following.result()
            if index + 1 < len(boxes):
                following = read(index + 1)
            yield values


def read_scaled(scan: Scan, prepared: Preparation, box: Box, buffer: Buffer) -> Float32:
    """Return the normalized values (f, z, y, x) of a box of the crop, in a buffer."""
    size = scan.volume.size
    job = Job(size, ZERO, size, ZERO, "edge")
    at = box.shifted(prepared.crop.start)
    scaling = prepared.network.scaling.first(scan.volume.features)
    values = read_input(scan.volume, job, at, scaling, buffer)
    if prepared.mask is not None:
        outside = ~np.asarray(prepared.mask[box.slices])
        for one in values:
            np.copyto(one, 0, where=outside)
    return values


def preparing_bytes(scan: Scan, prepared: Preparation, threads: int, room: int) -> int:
    """Return the bytes that ``write_input`` takes, or takes for a smaller crop."""
    taken = image_slabs(scan.volume, prepared.image, threads, room).nbytes
    if rules_of(prepared.network).values:
        taken = max(taken, changed_bytes(prepared.image.target, scan.volume.features))
    return taken


def _bounds(scan: Scan, prepared: Preparation, planes: int) -> Float32:
    """Return the least and the largest value of the crop, or of each of its slices.

    A spline overshoots the values that it joins, so its values are clipped to them.
    """
    separate = prepared.image.separate
    whole = Box(ZERO, prepared.crop.size)
    boxes = list(whole.cut(whole.size._replace(z=planes)))
    pieces = [bounds_of(values, separate) for values in read_ahead(scan, prepared, boxes)]
    if separate == 0:  # each piece has slices of its own
        return np.concatenate(pieces, axis=1)
    joined = np.stack(pieces)
    return np.stack([joined[..., 0].min(axis=0), joined[..., 1].max(axis=0)], axis=-1)
