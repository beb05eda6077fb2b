"""A convolution as a graph of cuDNN, computed by the engine that was fastest when it was tried.

The choice is kept in the user's cache, under everything that it depends on. NVIDIA's package
``nvidia-cudnn-frontend`` gives access to cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from math import inf
from statistics import median
from typing import Any

from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Shape5
from znni.core.text import in_units
from znni.core.value_cache import ValueCache
from znni.machine.cuda import LibraryFailed, cupy
from znni.machine.timing import seconds_on_device
from znni.network.layers import Conv
from znni.primitives.gpu.cudnn.formats import Format
from znni.primitives.gpu.cudnn.pieces import Pieces
from znni.primitives.gpu.cudnn.refusals import refuse

# cuDNN lists first the engines that it expects to be fast. So many of them are tried, and each is
# timed several times. Some engines take a hundred times as long as the best. If an engine's first
# run takes SLOW times as long, beside the seconds for loading code, there is no other run.
MOST_TRIED = 10
REPEATS = 3
SLOW = 2.0
LOADING_SECONDS = 0.1

INSTALL = (
    "install it with: pip install 'znni[cudnn]' (CUDA 13) or pip install 'znni[cudnn12]' (CUDA 12)"
)


# The engine's place in cuDNN's list, and its name.
CHOICES = ValueCache[tuple[int, str]]("cudnn", 1, tuple)


@cache
def cudnn() -> Any:
    """Return the module ``cudnn``.

    Raises:
        InvalidInput: the module is not installed, or does not find cuDNN's library.
    """
    try:
        return import_module("cudnn")
    except ImportError as error:
        raise InvalidInput(f"cuDNN's package cannot be imported ({error}); {INSTALL}") from None


@cache
def _handle(device: int) -> Any:  # noqa: ARG001 - each device has its own
    return cudnn().create_handle()


def handle() -> Any:
    """Return cuDNN's handle for the current device, set to the current stream."""
    found = _handle(cupy().cuda.Device().id)
    cudnn().set_stream(found, cupy().cuda.get_current_stream().ptr)
    return found


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn cuDNN's errors within a ``with`` block into one kind of error.

    Raises:
        LibraryFailed: cuDNN raised an error.
    """
    try:
        yield
    except (cudnn().cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
        raise LibraryFailed(f"cuDNN: {str(error).splitlines()[0]}") from error


def graph_key(conv: Conv, piece: Pieces, number: Format, limit: int) -> str:
    """Return text that identifies a convolution, as far as cuDNN's choice depends on it."""
    return repr((conv.kernel, piece.shape, piece.out, number, limit))


class ConvolutionGraph:
    """The sums of a valid cross-correlation, without bias, on packed arrays of one shape.

    Args:
        conv: the convolution.
        piece: the shapes of input and output.
        number: the format and layout of both.
        limit: bytes of workspace that the engine may take.

    Raises:
        LibraryFailed: cuDNN does not support such a convolution.
    """

    def __init__(self, conv: Conv, piece: Pieces, number: Format, limit: int) -> None:
        with library_errors():
            self._describe(conv, piece, number)
        self._index = 0
        self._limit, self._key = limit, graph_key(conv, piece, number, limit)

    def _describe(self, conv: Conv, piece: Pieces, number: Format) -> None:
        """Describe the convolution to cuDNN."""
        self._barred = number.barred
        weights = Shape5(*conv.weight_shape)
        data_type = getattr(cudnn().data_type, number.data_type)
        single = cudnn().data_type.FLOAT
        self._graph = cudnn().pygraph(
            handle=handle(),
            io_data_type=data_type,
            intermediate_data_type=single,
            compute_data_type=single,
        )
        self._in, self._weights = (
            self._graph.tensor(name=name, dim=list(shape), stride=strides(shape, number))
            for name, shape in (("in", piece.shape), ("weights", weights))
        )
        self._out = self._graph.conv_fprop(
            image=self._in,
            weight=self._weights,
            pre_padding=[0, 0, 0],
            post_padding=[0, 0, 0],
            stride=[1, 1, 1],
            dilation=[1, 1, 1],
        )
        self._out.set_output(True).set_data_type(data_type)
        self._out.set_dim(list(piece.out)).set_stride(strides(piece.out, number))
        self._graph.validate()
        self._graph.build_operation_graph()

    def choose(self, x: int, weights: int, y: int) -> None:
        """Take the fastest engine: the one that was found earlier, or the one found now.

        Args:
            x: address of a packed input.
            weights: address of the packed weights.
            y: address of a packed output, which is overwritten.

        Raises:
            RunFailed: no engine computes the convolution within the limit of workspace.
            LibraryFailed: cuDNN fails.
        """
        self._propose()
        about = (cudnn().backend_version(), _device_name(), self._key)
        index, name = CHOICES.load(about) or (-1, "")
        if not self._is_named(index, name):
            index = self._fastest(x, weights, y)
            CHOICES.store(about, (index, self._graph.get_plan_name_at_index(index)))
        with library_errors():
            self._take(index)

    def run(self, x: int, weights: int, y: int, workspace: int) -> None:
        """Compute, on the current stream.

        Args:
            x: address of the packed input.
            weights: address of the packed weights.
            y: address of the packed output.
            workspace: address of as many bytes as the limit.

        Raises:
            LibraryFailed: cuDNN fails.
        """
        addresses = {self._in: x, self._weights: weights, self._out: y}
        with library_errors():
            self._graph.execute_plan_at_index(addresses, workspace, self._index, handle=handle())

    def _take(self, index: int) -> int:
        """Make an engine the one that runs, and return its workspace in bytes."""
        self._graph.build_plan_at_index(index)
        self._index = index
        return int(self._graph.get_workspace_size_plan_at_index(index))

    def _propose(self) -> None:
        """Let cuDNN list its engines, first those that it expects to be fast."""
        modes, notes = cudnn().heur_mode, cudnn().numerical_note
        with library_errors():
            self._graph.create_execution_plans([modes.A, modes.FALLBACK])
            if self._barred:
                self._graph.deselect_numeric_notes([getattr(notes, name) for name in self._barred])

    def _is_named(self, index: int, name: str) -> bool:
        """Return whether cuDNN lists the engine in the same place as before."""
        known: int = self._graph.get_execution_plan_count()
        return 0 <= index < known and bool(self._graph.get_plan_name_at_index(index) == name)

    def _fastest(self, x: int, weights: int, y: int) -> int:
        times: dict[int, float] = {}
        for index, _, run in self._engines(x, weights, y, MOST_TRIED):
            times[index] = engine_seconds(run, min(times.values(), default=inf))
        if not times:
            refuse(_device_name(), self._key)
            raise RunFailed(
                f"cuDNN has no engine for this convolution within {in_units(self._limit)} of "
                "workspace; run again: from now on, plans leave it out"
            )
        return min(times, key=times.__getitem__)

    def engines(
        self, x: int, weights: int, y: int, most: int
    ) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """Yield the engines that keep to the limits: index, bytes of workspace, and a run.

        Args:
            x: address of a packed input.
            weights: address of the packed weights.
            y: address of a packed output, which is overwritten.
            most: the number of engines after which no more are tried.

        Raises:
            LibraryFailed: cuDNN proposes none.
        """
        self._propose()
        yield from self._engines(x, weights, y, most)

    def _engines(
        self, x: int, weights: int, y: int, most: int
    ) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """Yield the engines as ``engines`` does, once cuDNN has listed them."""
        tried = 0
        for index in range(self._graph.get_execution_plan_count()):
            if tried == most:
                return
            try:
                with library_errors():
                    workspace = self._take(index)
            except LibraryFailed:
                continue  # barred, or not able to compute this shape
            if workspace > self._limit:
                continue
            tried += 1
            memory = cupy().cuda.Memory(max(workspace, 1))
            yield index, workspace, partial(self.run, x, weights, y, memory.ptr)


def engine_seconds(run: Callable[[], None], best: float) -> float:
    """Return an engine's seconds: those of its first run if that is slow enough to reject it.

    Args:
        run: launches the engine on the current stream.
        best: seconds of the fastest engine so far.
    """
    first = seconds_on_device(run)
    if first > SLOW * best + LOADING_SECONDS:
        return first
    return median(seconds_on_device(run) for _ in range(REPEATS))


def strides(shape: Shape5, number: Format) -> list[int]:
    """Return the strides in elements along (n, f, z, y, x) of a packed array."""
    _, f, z, y, x = shape
    if number.channels_last:
        return [f * z * y * x, 1, y * x * f, x * f, f]
    return [f * z * y * x, z * y * x, y * x, x, 1]


def _device_name() -> str:
    properties = cupy().cuda.runtime.getDeviceProperties(cupy().cuda.Device().id)
    return str(properties["name"].decode())
