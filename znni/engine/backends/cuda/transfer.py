"""Copies between the host and a GPU: uploads of tensors, and downloads of outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import FLOAT_BYTES, Box, Shape5
from znni.engine.backends.cuda.scaling import DeviceScaling
from znni.engine.executor import Fragments
from znni.engine.scaling import StoredScaling
from znni.machine.cuda import cupy
from znni.machine.locked_arrays import LockedArrays


class Span(NamedTuple):
    """The work of a stream between two events."""

    before: Any
    after: Any

    @property
    def seconds(self) -> float:
        """The seconds of the work. They are known once the second event has happened."""
        return float(cupy().cuda.get_elapsed_time(self.before, self.after)) * 1e-3


class Upload:
    """Uploads of tensors to a GPU, into two buffers in turn.

    One buffer is filled while the layers compute on the other. Stored values have two buffers of
    their own. They are scaled into a third one when the layers before are done with that.

    Args:
        part: the shape of the part that is copied at a time.
        compute: the stream that reads it.
        itemsize: the bytes of a value: 4 of float32, or those of a stored integer.
        scale: scales stored values.
    """

    def __init__(
        self,
        part: Shape5,
        compute: Any,
        itemsize: int = FLOAT_BYTES,
        scale: DeviceScaling | None = None,
    ) -> None:
        self.compute = compute
        self.stream = cupy().cuda.Stream(non_blocking=True)
        nbytes = part.elements * itemsize
        self._buffers = cycle((UploadBuffer(nbytes), UploadBuffer(nbytes)))
        self._scale = scale
        self._scaled = UploadBuffer(part.nbytes) if scale else None

    def next_buffer(self) -> UploadBuffer:
        """Return the older of the two buffers."""
        return next(self._buffers)

    @contextmanager
    def of(self, fragments: Fragments) -> Iterator[CopiedOnRead]:
        """Copy a tensor part by part in a ``with`` block; afterwards it may be overwritten.

        Args:
            fragments: the tensor. Stored values are a single part.
        """
        tensor = CopiedOnRead(self, fragments)
        yield tensor
        tensor.finish()

    def scaled(self, stored: Any, scaling: StoredScaling) -> Any:
        """Queue the scaling of stored values on the current stream, and return what they become.

        Raises:
            ValueError: nothing scales them.
        """
        if self._scale is None or self._scaled is None:
            raise ValueError("stored values are given to a plan for float32")
        scaled = self._scaled.array(stored.shape, np.dtype(np.float32))
        self._scale(stored, scaling, scaled)
        return scaled


class CopiedOnRead:
    """A host tensor: whoever reads items of it gets them on the GPU. Each item is read once.

    Args:
        upload: the upload that copies them.
        given: the tensor (n, f, z, y, x). It is let go once its last part is copied.

    Attributes:
        copied: the copy of each part, until it is settled.
        computed: the compute stream's work on each part, from the end of its copy, until it is
            settled.
    """

    def __init__(self, upload: Upload, fragments: Fragments) -> None:
        self._upload = upload
        self._values: NDArray[Any] | None = fragments.values
        self._scaling = fragments.scaling
        self._at_work: tuple[UploadBuffer, Any] | None = None
        self._settled = (0.0, 0.0)
        self.copied: list[Span] = []
        self.computed: list[Span] = []

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self._tensor.shape

    @property
    def _tensor(self) -> NDArray[Any]:
        """The tensor, until its last part is copied."""
        if self._values is None:
            raise ValueError("all parts are copied")
        return self._values

    def within(self, box: Box) -> BoxCopiedOnRead:
        """Return a box of the tensor, whose items are copied when they are read."""
        return BoxCopiedOnRead(self, box)

    def __getitem__(self, items: slice) -> Any:
        """Queue the copy of some items, and return them on the GPU.

        They are valid for work queued before the next items are read.
        """
        return self._bring(self._tensor[items], self._scaling)

    def in_box(self, items: slice, box: Box) -> Any:
        """Queue the copy of a box of some items. It is valid as long as whole items are."""
        scaling = self._scaling and self._scaling.within(box)
        return self._bring(self._tensor[items][:, :, *box.slices], scaling)

    def _bring(self, values: NDArray[Any], scaling: StoredScaling | None) -> Any:
        """Queue the copy of values, and their scaling. Return them on the GPU."""
        self._let_go()
        upload, buffer = self._upload, self._upload.next_buffer()
        upload.stream.wait_event(buffer.free_after)
        before = _now(upload.stream)
        x = buffer.array(values.shape, values.dtype)
        for one, into in _pieces(values, x):
            into.set(one, stream=upload.stream)
        self.copied.append(Span(before, _now(upload.stream)))
        upload.compute.wait_event(self.copied[-1].after)
        self._at_work = buffer, _now(upload.compute)
        return upload.scaled(x, scaling) if scaling else x

    def finish(self) -> None:
        """Wait until the last part is copied. The compute stream may still read it."""
        self._let_go()
        self.copied[-1].after.synchronize()
        self._values = None

    def settle(self) -> None:
        """Keep the seconds of the work instead of its events. All of it must be done."""
        self._settled = self.seconds
        self.copied.clear()
        self.computed.clear()

    @property
    def seconds(self) -> tuple[float, float]:
        """The seconds of the copies and of the compute stream's work, which must be done."""
        copying, computing = self._settled
        return (
            copying + sum(span.seconds for span in self.copied),
            computing + sum(span.seconds for span in self.computed),
        )

    def _let_go(self) -> None:
        """Free the last part's buffer as soon as all work queued so far is done."""
        if self._at_work:
            buffer, before = self._at_work
            buffer.free_after = _now(self._upload.compute)
            self.computed.append(Span(before, buffer.free_after))


@dataclass(frozen=True)
class BoxCopiedOnRead:
    """A box of a host tensor: whoever reads items of it gets them on the GPU.

    Attributes:
        whole: the whole tensor.
    """

    whole: CopiedOnRead
    box: Box

    def __getitem__(self, items: slice) -> Any:
        """Return some items on the GPU, as ``CopiedOnRead`` does."""
        return self.whole.in_box(items, self.box)


def _pieces(values: NDArray[Any], x: Any) -> Iterator[tuple[NDArray[Any], Any]]:
    """Yield the parts of values that lie in one piece, and where each goes in an array of a GPU.

    A plane with gaps between its rows is copied into one piece.
    """
    if values.flags.c_contiguous or values.ndim == 2:
        yield np.ascontiguousarray(values), x
        return
    for part, into in zip(values, x, strict=True):
        yield from _pieces(part, into)


class UploadBuffer:
    """GPU memory for one part.

    Args:
        nbytes: the bytes of the part.

    Attributes:
        free_after: the event after which the buffer may be filled again.
    """

    def __init__(self, nbytes: int) -> None:
        self._bytes = cupy().empty(nbytes, np.uint8)
        self._latest: tuple[Any, Any] = None, None
        self.free_after = cupy().cuda.Event()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return the part as an array. All parts of a run but a few have the same shape."""
        key = shape, dtype
        if self._latest[0] != key:
            needed = self._bytes[: prod(shape) * dtype.itemsize]
            self._latest = key, needed.view(dtype).reshape(shape)
        return self._latest[1]


class Download:
    """Downloads of one array at a time, into page-locked memory at the full speed of the link.

    Attributes:
        stream: the stream that copies.
    """

    def __init__(self) -> None:
        self.stream = cupy().cuda.Stream(non_blocking=True)
        self._arrays = LockedArrays()

    def of(self, values: Any) -> NDArray[Any]:
        """Return a copy on the host. All work queued on the stream before is done first."""
        copy = self._arrays.array(values.shape, values.dtype)
        values.get(stream=self.stream, out=copy)
        return copy


def _now(stream: Any) -> Any:
    """Record an event for all work queued on a stream so far. A thread that waits for it sleeps."""
    return stream.record(cupy().cuda.Event(block=True))
