"""The executor: it runs a program, depth first.

Each result goes through the loops within it before the next input is taken. A ``StepRunner`` has
what differs between devices: memory, clocks, and ways to launch work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from znni.core.shapes import ONE, ZERO, Box, Vec3, extended, extent, resized
from znni.engine.block import Block
from znni.engine.scaling import StoredScaling
from znni.network.weights import Weights
from znni.plans.fragments import Positions, positions_after
from znni.plans.primitive import Catalogue, Run
from znni.plans.program import Edges, PlacedStep, Program, View
from znni.plans.segments import Step
from znni.plans.step_primitive import primitive_of

# An array of the host or a GPU.
Array: TypeAlias = Any

# A function that takes each step that was run, and its seconds.
Measured: TypeAlias = Callable[[Step, float], None]


# No step is left out while a block itself is computed.
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


class BuiltStep(NamedTuple):
    """A step that is ready to run.

    Attributes:
        placed: the step, with the places of its arrays.
        run: the function that computes it.
    """

    placed: PlacedStep
    run: Run


class OutputMemory(NamedTuple):
    """The memory of a step's output.

    Attributes:
        maps: the maps of the value, with all samples of their array.
        view: the samples that the step writes. None: it makes its output late.
        inside: the samples of the maps that lie within the volume. None: all do.
    """

    maps: Array
    view: Array | None
    inside: Box | None = None


class StepRunner(Protocol):
    """A runner of steps on one device, with its memory for a program."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The arrays of the arena, by name."""

    def maps(self, view: View, array: Array) -> Array:
        """Return the maps of a value in its array, with all samples."""

    def within(self, maps: Array, box: Box) -> Array:
        """Return the samples of a value in a box."""

    def launch(self, key: tuple[Array, Hashable], work: Callable[[], Array]) -> Array:
        """Do work, or do again what equal work did.

        Args:
            key: the input, and a value that equal work shares.
            work: queues the steps, and returns their result.
        """

    def call(self, built: BuiltStep, given: Sequence[Any], output: OutputMemory) -> Array:
        """Run a step, and return its output.

        Args:
            built: the step.
            given: its inputs. If it sees edges, the box of the whole input follows them.
            output: the memory of its output.
        """


class Carrier(Protocol):
    """The memory of a device for the planes that a sweep carries from block to block."""

    def carry(self, array: Array, placed: PlacedStep, passed: int) -> None:
        """Put the planes that a sweep has carried before new ones, and carry the array's last ones.

        Args:
            array: the maps of a step's output, with all samples of their array.
            placed: the step.
            passed: how often it has filled the array for the block before.
        """

    def forget(self) -> None:
        """Clear what a sweep carries: nothing comes before the next block."""


# A function that takes the results of the last step.
Put: TypeAlias = Callable[[Fragments], None]

# A function that returns the part of the tensor that is handed on for so many items.
Target: TypeAlias = Callable[[int], Array]


def built_steps(program: Program, catalogue: Catalogue, weights: Weights) -> list[BuiltStep]:
    """Return the steps of a program, built by their primitives."""

    def run(step: Step) -> Run:
        parameters = weights.of_operation([layer.name for layer in step.layers])
        primitive = primitive_of(catalogue, step.primitive)
        return primitive.build(step.operation, step.shape_in, parameters)

    return [BuiltStep(each, run(each.step)) for each in program.steps]


class Executor:
    """A program that is ready to run.

    Args:
        program: the program.
        steps: its steps, built.
        runner: runs them on the device.
        carrier: the memory for what a sweep carries; None: there are no sweeps.
    """

    def __init__(
        self,
        program: Program,
        steps: Iterable[BuiltStep],
        runner: StepRunner,
        carrier: Carrier | None = None,
    ) -> None:
        self._program = program
        self._runner = runner
        self._carrier = carrier
        built = iter(steps)
        self._loops = [(loop, [next(built) for _ in loop.steps]) for loop in program.loops]
        self._latest: tuple[Vec3, dict[str, Edges], int] | None = None
        self._numbers: dict[object, int] = {}
        self._passed = [0] * len(self._loops)  # how often each loop has run for a block
        self._behind = NOTHING_BEHIND  # only steps with a larger ``PlacedStep.behind`` run

    def __call__(
        self, given: Fragments, put: Put, target: Target | None = None, *, follows: bool = False
    ) -> None:
        """Take the input of one block through the program.

        Args:
            given: the input. Each part of its values is read once, in order.
            put: the function that takes the results of the last step.
            target: the function that returns the part of the tensor for the next results, if they
                are handed on.
            follows: whether a sweep goes on from the block before. If not, the planes before the
                block's are computed first.
        """
        swept = self._program.swept
        if swept is None or self._carrier is None:
            self._loop(0, given, put, target)
            return
        axis, planes = swept.axis, swept.new + self._program.first_planes
        if not follows:
            self._carrier.forget()
        behind = 0 if follows else max(step.behind for step in self._program.steps)
        for back in range(swept.passes(behind), -1, -1):
            self._passed = [0] * len(self._loops)
            self._behind = (back - 1) * swept.new if back else NOTHING_BEHIND
            stop = extended(Vec3(*given.values.shape[2:]), axis, -back * swept.new)
            start = resized(ZERO, axis, extent(stop, axis) - planes)
            values = self._runner.within(given.values, Box(start, stop))
            at = tuple(extended(it, axis, -back * swept.new) for it in given.at)
            self._loop(0, given._replace(values=values, at=at), put, target)

    def _loop(self, level: int, given: Fragments, put: Put, target: Target | None) -> None:
        """Run a loop, and those within it, on an input."""
        loop, _ = self._loops[level]
        for items in loop.batches(len(given.at)):
            # On a GPU, reading a block's input queues its copy (``CopiedOnRead.__getitem__``).
            values, at = given.values[items], given.at[items]
            for chosen in loop.choices():
                crop = loop.crop(chosen)
                x = self._runner.within(values, crop) if crop else values
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
        """Run the steps of a loop once, and return their last value; None if it is not needed.

        Args:
            level: the number of the loop.
            x: its input.
            start: where a block of a tiled network begins in the whole output. For a sliding
                network it is the position of a fragment, which makes no difference.
            target: as for ``__call__``.
        """
        edges, number = self._edges(start)
        key = x, (number, self._behind)
        return self._runner.launch(key, lambda: self._run(level, x, edges, target))

    def _edges(self, start: Vec3) -> tuple[dict[str, Edges], int]:
        """Return the ``Edges`` of all steps, for a block that begins at this voxel.

        The latest result is kept. Small volumes have one block, and all windows begin at the same
        voxel.

        Returns:
            The edges by what steps give, and a number that blocks of the same work share.
        """
        program = self._program
        if self._latest is None or (program.storage and self._latest[0] != start):
            edges = program.edges(start)
            work = tuple((each.seen, each.inside) for each in edges.values())
            number = self._numbers.setdefault(work, len(self._numbers))
            self._latest = start, edges, number
        return self._latest[1:]

    def _run(self, level: int, x: Array, edges: dict[str, Edges], target: Target | None) -> Array:
        """Run step after step of a loop, and return the last value.

        Before a block of a sweep, only the first steps are needed. Then it returns None.
        """
        loop, steps = self._loops[level]
        passed, self._passed[level] = self._passed[level], self._passed[level] + 1
        arrays = {**self._runner.arrays, loop.takes: x}
        for built in steps:
            placed, edge = built.placed, edges.get(built.placed.step.gives)
            if placed.behind <= self._behind:
                continue
            given = [self._view(view, arrays) for view in placed.reads]
            if edge and edge.whole is not None:
                given.append(edge.whole)
            writes = placed.writes
            if writes.array not in arrays and target:
                arrays[writes.array] = target(placed.step.shape_out.n)
            output = self._runner.call(built, given, self._output(placed, arrays, edge))
            if placed.late_at is not None:
                arrays[writes.array] = output
            if placed.carried and self._carrier:
                maps = self._runner.maps(writes, arrays[writes.array])
                self._carrier.carry(maps, placed, passed)
        last = steps[-1].placed
        if last.behind <= self._behind:
            return None
        if self._program.storage:
            return self._view(self._program.output, arrays)
        return self._view(last.writes._replace(box=None), arrays)  # with planes that are carried

    def _view(self, view: View, arrays: Mapping[str, Array]) -> Array:
        """Return the samples of a view."""
        maps = self._runner.maps(view, arrays[view.array])
        return maps if view.box is None else self._runner.within(maps, view.box)

    def _output(
        self, placed: PlacedStep, arrays: Mapping[str, Array], edges: Edges | None
    ) -> OutputMemory:
        """Return the memory of a step's output."""
        view = placed.writes
        maps = self._runner.maps(view, arrays[view.array])
        if placed.late_at is not None:
            return OutputMemory(maps, None)
        inside = edges.inside if edges else None
        return OutputMemory(maps, self._view(view, arrays), inside)
