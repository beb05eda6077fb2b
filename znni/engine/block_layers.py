"""The layers of an exact network on the host, which blocks go through.

All arrays of a block lie in one arena, at places that the plan decided. Each step reads views of
them and writes into a view. Samples outside the volume are then set to zero, as padding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Box, Vec3
from znni.engine.executor import Fragments, Measured, built
from znni.engine.stages import Work
from znni.engine.stopwatch import Stopwatch
from znni.machine.arena import SPARE, Arena, output_into
from znni.machine.arrays import ALIGNMENT
from znni.network.network import INPUT, Node
from znni.network.weights import Float32, Weights
from znni.plans.block_storage import BlockStorage
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, Run
from znni.plans.segments import Step


class _Ready(NamedTuple):
    """A step that is ready to run.

    Attributes:
        step: the step.
        run: the function that computes it.
        free: the part of the arena for its workspace, in bytes.
        reads: the samples that it reads of each input's storage.
        output: the view into which it writes.
        held: the storage's maps of its value, with all samples.
    """

    step: Step
    run: Run
    free: tuple[int, int]
    reads: tuple[Box, ...]
    output: Float32
    held: Float32


class BlockLayers:
    """The layers of a plan for an exact network, with everything prepared that can be.

    Args:
        plan: the plan.
        part: the plan's part on the host, which is all of it.
        catalogue: the primitives that it names.
        weights: the network's weights.
        measured: the function that takes the seconds of each step, as soon as it is done.
    """

    def __init__(
        self,
        plan: Plan,
        part: DevicePart,
        catalogue: Catalogue,
        weights: Weights,
        measured: Measured,
    ) -> None:
        if part.storage is None:
            raise ValueError(f"network {plan.network.name} is dense; use HostLayers")
        from znni.primitives.cpu.common.workers import workers

        self._workers = workers(plan.machine.host.threads)
        self._network = plan.network
        self._patch = plan.patch
        self._is_window = plan.network.window is not None
        self._storage = part.storage
        self._measured = measured
        placed = part.placed(ALIGNMENT, SPARE)
        self._arena = Arena(placed.size, spare=0)
        nodes = {node.name: node for node in plan.network.nodes}
        self._arrays: dict[str, Float32] = {}
        self._steps = []
        for step, place in zip(part.steps, placed.places[0], strict=True):
            at = self._storage.locations[step.gives]
            if at.storage not in self._arrays and place.output is not None:
                shape = self._storage.storages[at.storage].shape
                self._arrays[at.storage] = self._arena.array_at(place.output, shape)
            held = self._maps(step.gives, self._arrays[at.storage])
            self._steps.append(
                _Ready(
                    step,
                    built(step, catalogue, weights),
                    place.free,
                    boxes_read(step, nodes, self._storage),
                    held[:, :, *self._storage.made(step.gives).slices],
                    held,
                )
            )

    def _maps(self, name: str, array: Float32) -> Float32:
        """Return the maps of a value in its storage."""
        first = self._storage.locations[name].first_map
        return array[:, first : first + self._network.maps[name]]

    def stages(self, stopwatch: Stopwatch) -> list[Work]:
        """Return one stage, which gives dense output (f', Z, Y, X), or the outputs of windows."""

        def work(given: Fragments) -> Float32:
            with stopwatch.during("host_layers"):
                made = self.made(given)
                # Outputs of windows are added to a block before the next ones come.
                return made if self._is_window else self._dense(made)

        return [work]

    def made(self, given: Fragments) -> Float32:
        """Return the outputs (n, f', z, y, x), which the next call overwrites.

        Args:
            given: the input (n, f, z, y, x) of a block at its place in the whole output, or of
                windows that are computed at once.
        """
        (start,) = given.at
        for ready in self._steps:
            self._run(ready, given.values, start)
        name = self._network.output
        at = self._storage.locations[name]
        whole = self._maps(name, self._arrays[at.storage])
        return whole[:, :, *self._storage.made(name).slices]

    def _dense(self, made: Float32) -> Float32:
        """Return the output (f', Z, Y, X) of a block."""
        dense = np.empty((made.shape[1], *self._patch), np.float32)
        z, y, x = made.shape[2:]
        dense[:, :z, :y, :x] = made[0]
        return dense

    def _run(self, ready: _Ready, block: Float32, start: Vec3) -> None:
        """Run a step on a block that begins at a voxel of the whole output."""
        from znni.primitives.cpu.common.clearing import clear_outside

        step, strides, storage = ready.step, self._network.strides, self._storage
        given = []
        for name, box in zip(step.takes, ready.reads, strict=True):
            at = storage.locations[name]
            array = block if at.storage == INPUT else self._arrays[at.storage]
            given.append(self._maps(name, array)[:, :, *box.slices])
        begun = time.perf_counter()
        with self._arena.step(None, ready.free), output_into(ready.output):
            if step.layers[0].sees_edges:
                (name,), (box,) = step.takes, ready.reads
                inside = storage.whole(name, start // strides[name])
                ready.run(*given, inside.shifted(Vec3(0, 0, 0) - box.start))
            else:
                ready.run(*given)
        if step.gives in storage.cleared:
            inside = storage.inside(step.gives, start // strides[step.gives])
            clear_outside(ready.held, inside, self._workers)
        self._measured(step, time.perf_counter() - begun)


def boxes_read(step: Step, nodes: Mapping[str, Node], storage: BlockStorage) -> tuple[Box, ...]:
    """Return the samples of its storage that a step reads of each value that it takes."""
    counts = Counter[tuple[str, str]]()
    boxes = []
    for reader, name in step.reads:
        places = [i for i, taken in enumerate(nodes[reader].inputs) if taken == name]
        boxes.append(storage.read(nodes[reader], places[counts[reader, name]]))
        counts[reader, name] += 1
    return tuple(boxes)
