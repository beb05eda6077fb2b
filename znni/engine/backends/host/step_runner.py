"""The host's runner of steps: they run one after the other, in one arena."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from znni.core.shapes import Box
from znni.core.trace import note_span
from znni.engine.executor import Array, BuiltStep, Measured, OutputMemory
from znni.machine.arena import Arena, output_into
from znni.network.weights import Float32
from znni.plans.program import PlacedStep, Program, View


class HostStepRunner:
    """The host's memory for a program, and its clock.

    Args:
        program: the program.
        measured: the function that takes the seconds of each step, as soon as it is done.
        threads: the number of workers.
        page_locked: whether a GPU copies to and from the arrays.

    Attributes:
        arrays: the arrays of the arena, by name.
    """

    def __init__(
        self, program: Program, measured: Measured, threads: int, *, page_locked: bool = False
    ) -> None:
        self._arena = Arena(program.size, spare=0, page_locked=page_locked)
        self._measured = measured
        self._threads = threads
        self.arrays = {
            name: self._arena.array_at(array.start, array.shape)
            for name, array in program.arrays.items()
        }
        self._carried = {
            each.step.gives: self._arena.array_at(
                carried.start, (carried.kept.passes, *carried.kept.shape)
            )
            for each in program.steps
            if (carried := each.carried)
        }

    def maps(self, view: View, array: Float32) -> Float32:
        """Return the maps of a value in its array, with all samples."""
        return array[:, view.first_map : view.first_map + view.maps]

    def within(self, maps: Float32, box: Box) -> Float32:
        """Return the samples of a value in a box."""
        return maps[:, :, *box.slices]

    def carry(self, array: Float32, placed: PlacedStep, passed: int) -> None:
        """Put the planes that a sweep has carried before new ones, and carry the array's last ones.

        Args:
            array: the maps of a step's output, with all samples of their array.
            placed: the step.
            passed: how often it has filled the array for the block before.
        """
        from znni.primitives.cpu.common.workers import workers

        assert placed.carried is not None
        carried = self._carried[placed.step.gives][passed]
        first, last = placed.carried.kept.first_and_last

        def task(_worker: int, maps: slice) -> None:
            array[:, maps, *first.slices] = carried[:, maps]
            carried[:, maps] = array[:, maps, *last.slices]

        pool = workers(self._threads)
        pool.for_each(task, pool.shares(carried.shape[1]))

    def forget(self) -> None:
        """Clear what a sweep carries: nothing comes before the next block."""
        for carried in self._carried.values():
            carried[...] = 0

    def launch(self, _key: tuple[Array, Hashable], work: Callable[[], Array]) -> Array:
        """Do work."""
        return work()

    def call(self, built: BuiltStep, given: Sequence[Any], output: OutputMemory) -> Float32:
        """Run a step, and return its output.

        The primitive takes its output from ``new_output``. ``output_into`` and ``Arena.step`` say
        where that lies.
        """
        placed, run = built
        begun = time.perf_counter()
        with (
            self._arena.step(placed.late_at, placed.room),
            output_into(output.view),
        ):
            made = run(*given)
        if output.inside is not None:
            from znni.primitives.cpu.common.clearing import clear_outside
            from znni.primitives.cpu.common.workers import workers

            clear_outside(output.maps, output.inside, workers(self._threads))
        ended, step = time.perf_counter(), placed.step
        self._measured(step, ended - begun)
        note_span(step.operation.name, begun, ended, str(step.primitive))
        return made
