"""The executor: it runs a program on a backend, depth first.

Each result goes through the loops within it before the next input is taken. A backend has what
differs between devices: memory, clocks, and ways to launch work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

from znni.core.shapes import Box, Vec3
from znni.engine.block import Block
from znni.engine.scaling import StoredScaling
from znni.network.weights import Weights
from znni.plans.fragments import ONE, Positions, positions_after
from znni.plans.primitive import Catalogue, Run
from znni.plans.program import Edges, Operation, Program, View
from znni.plans.segments import Step
from znni.plans.step_primitive import primitive_of

# An array of the host or a GPU.
Array: TypeAlias = Any

# A function that takes each step that was run, and its seconds.
Measured: TypeAlias = Callable[[Step, float], None]


# Every operation runs for a block itself.
NOTHING_BEHIND = -1


def not_measured(_step: Step, _seconds: float) -> None:
    """Ignore a measured step."""


class Fragments(NamedTuple):
    """Fragments of a patch, on the host or a GPU.

    Attributes:
        values: the values (n, f, z, y, x).
        at: the position of each fragment's first voxel in the patch's dense output. A block of a
            tiled network has its position in the whole output.
        stride: the distance between neighbouring voxels of a fragment in that output.
        scaling: the scaling that stored values still need; None: they are what the network sees.
    """

    values: Array
    at: tuple[Vec3, ...]
    stride: Vec3
    scaling: StoredScaling | None = None


def fragments_of(block: Block) -> Fragments:
    """Return a block's input (f, z, y, x) as its only fragment, or the fragments that it holds."""
    if isinstance(block.values, Fragments):
        return block.values
    return Fragments(block.values[None], (block.start,), ONE, block.scaling)


class Prepared(NamedTuple):
    """An operation that is ready to run.

    Attributes:
        operation: the operation.
        run: the function that computes it.
    """

    operation: Operation
    run: Run


class OutputMemory(NamedTuple):
    """The memory of an operation's output.

    Attributes:
        maps: the maps of the value, with all samples of their array.
        view: the samples that the operation writes. None: it makes its output late.
        inside: the samples of the maps that lie within the volume. None: all do.
    """

    maps: Array
    view: Array | None
    inside: Box | None = None


class Backend(Protocol):
    """A device that runs operations."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The arrays of the arena, by name."""

    def maps(self, view: View, array: Array) -> Array:
        """Return the maps of a value in its array, with all samples."""

    def within(self, maps: Array, box: Box) -> Array:
        """Return the samples of a value in a box."""

    def launch(self, key: tuple[Array, int], work: Callable[[], Array]) -> Array:
        """Do work, or do again what equal work did.

        Args:
            key: the input, and a number that equal work shares.
            work: queues the operations, and returns their result.
        """

    def call(self, prepared: Prepared, given: Sequence[Any], output: OutputMemory) -> Array:
        """Run an operation, and return its output.

        Args:
            prepared: the operation.
            given: its inputs. If it sees edges, the box of the whole input follows them.
            output: the memory of its output.
        """


class Carrier(Protocol):
    """The memory of a device for the planes that a sweep carries from block to block."""

    def carry(self, array: Array, operation: Operation, passed: int) -> None:
        """Put the planes that a sweep has carried before new ones, and carry the array's last ones.

        Args:
            array: the array of an operation's output.
            operation: the operation.
            passed: how often it has filled the array for the block before.
        """

    def forget(self) -> None:
        """Clear what a sweep carries: nothing comes before the next block."""


# A function that takes the results of the last operation.
Put: TypeAlias = Callable[[Fragments], None]

# A function that returns the part of the tensor that is handed on for so many items.
Target: TypeAlias = Callable[[int], Array]


def built_operations(program: Program, catalogue: Catalogue, weights: Weights) -> list[Prepared]:
    """Return the operations of a program, prepared by their primitives."""

    def run(step: Step) -> Run:
        parameters = weights.of_operation([layer.name for layer in step.layers])
        primitive = primitive_of(catalogue, step.primitive)
        return primitive.build(step.operation, step.shape_in, parameters)

    return [Prepared(each, run(each.step)) for each in program.operations]


class Executor:
    """A program that is ready to run.

    Args:
        program: the program.
        operations: its operations, prepared.
        backend: the device.
        carrier: the memory for what a sweep carries; None: there are no sweeps.
    """

    def __init__(
        self,
        program: Program,
        operations: Iterable[Prepared],
        backend: Backend,
        carrier: Carrier | None = None,
    ) -> None:
        self._program = program
        self._backend = backend
        self._carrier = carrier
        prepared = iter(operations)
        self._loops = [(loop, [next(prepared) for _ in loop.operations]) for loop in program.loops]
        self._latest: tuple[Vec3, list[list[Edges | None]], int] | None = None
        self._numbers: dict[object, int] = {}
        self._passed = [0] * len(self._loops)  # how often each loop has run for a block
        self._behind = NOTHING_BEHIND  # operations run whose outputs are needed farther behind

    def __call__(
        self, given: Fragments, put: Put, target: Target | None = None, *, follows: bool = False
    ) -> None:
        """Take the input of one block through the program.

        Args:
            given: the input. Each part of its values is read once, in order.
            put: the function that takes the results of the last operation.
            target: the function that returns the part of the tensor for the next results, if they
                are handed on.
            follows: whether a sweep goes on from the block before. If not, the planes before the
                block's are computed first.
        """
        swept, (first, *_) = self._program.swept, self._program.operations
        if swept is None or self._carrier is None:
            self._loop(0, given, put, target)
            return
        if not follows:
            self._carrier.forget()
        for back in range(0 if follows else swept.passes(first.behind), -1, -1):
            self._passed = [0] * len(self._loops)
            self._behind = (back - 1) * swept.new if back else NOTHING_BEHIND
            stop = Vec3(*given.values.shape[2:]) - Vec3(back * swept.new, 0, 0)
            start = Vec3(stop.z - swept.new - self._program.first_planes, 0, 0)
            values = self._backend.within(given.values, Box(start, stop))
            self._loop(0, given._replace(values=values), put, target)

    def _loop(self, level: int, given: Fragments, put: Put, target: Target | None) -> None:
        """Run a loop, and those within it, on an input."""
        loop, _ = self._loops[level]
        for items in loop.batches(len(given.at)):
            values, at = given.values[items], given.at[items]
            for chosen in loop.choices():
                crop = loop.crop(chosen)
                x = self._backend.within(values, crop) if crop else values
                last = self._launch(level, x, at[0], target)
                if last is None:
                    continue
                positions = positions_after(loop.segment, Positions(at, given.stride), chosen)
                results = Fragments(last, *positions)
                if level + 1 < len(self._loops):
                    self._loop(level + 1, results, put, target)
                else:
                    put(results)

    def _launch(self, level: int, x: Array, start: Vec3, target: Target | None) -> Array:
        """Run the operations of a loop once, and return their last value; None if it is not needed.

        Args:
            level: the number of the loop.
            x: its input.
            start: where a block of a tiled network begins in the whole output. For a sliding
                network it is the position of a fragment, which makes no difference.
            target: as for ``__call__``.
        """
        edges, number = self._edges(start)
        return self._backend.launch((x, number), lambda: self._run(level, x, edges[level], target))

    def _edges(self, start: Vec3) -> tuple[list[list[Edges | None]], int]:
        """Return the ``Edges`` of all operations, for a block that begins at this voxel.

        The latest result is kept. Small volumes have one block, and all windows begin at the same
        voxel.

        Returns:
            The edges of each loop's operations, and a number that blocks of the same work share.
        """
        program = self._program
        if self._latest is None or (program.storage and self._latest[0] != start):
            edges = [
                [program.edges(operation, start) for operation in loop.operations]
                for loop in program.loops
            ]
            work = tuple(each and (each.seen, each.inside) for each in chain(*edges))
            number = self._numbers.setdefault(work, len(self._numbers))
            self._latest = start, edges, number
        return self._latest[1:]

    def _run(self, level: int, x: Array, edges: list[Edges | None], target: Target | None) -> Array:
        """Run operation after operation of a loop, and return the last value.

        Before a block of a sweep, only the first operations are needed. Then it returns None.
        """
        loop, operations = self._loops[level]
        passed, self._passed[level] = self._passed[level], self._passed[level] + 1
        arrays = {**self._backend.arrays, loop.takes: x}
        for prepared, edge in zip(operations, edges, strict=True):
            operation = prepared.operation
            if operation.behind <= self._behind:
                return None
            given = [self._view(view, arrays) for view in operation.reads]
            if edge and edge.whole is not None:
                given.append(edge.whole)
            writes = operation.writes
            if writes.array not in arrays and target:
                arrays[writes.array] = target(operation.step.shape_out.n)
            output = self._backend.call(prepared, given, self._output(operation, arrays, edge))
            if operation.late_at is not None:
                arrays[writes.array] = output
            if operation.carried and self._carrier:
                self._carrier.carry(arrays[writes.array], operation, passed)
        last = self._program.output if self._program.storage else operations[-1].operation.writes
        return self._view(last._replace(box=None) if self._program.swept else last, arrays)

    def _view(self, view: View, arrays: Mapping[str, Array]) -> Array:
        """Return the samples of a view."""
        maps = self._backend.maps(view, arrays[view.array])
        return maps if view.box is None else self._backend.within(maps, view.box)

    def _output(
        self, operation: Operation, arrays: Mapping[str, Array], edges: Edges | None
    ) -> OutputMemory:
        """Return the memory of an operation's output."""
        view = operation.writes
        maps = self._backend.maps(view, arrays[view.array])
        if operation.late_at is not None:
            return OutputMemory(maps, None)
        inside = edges.inside if edges and operation.cleared else None
        return OutputMemory(maps, self._view(view, arrays), inside)
