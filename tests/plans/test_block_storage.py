"""Storages of blocks: each value is unspoilt in memory when a step of an exact network reads it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.bare_steps import bare_step
from znni.core.shapes import Box, Vec3
from znni.network.geometry import over, whole_input
from znni.network.layers import Concat
from znni.network.network import INPUT, Network, Node
from znni.plans.block_storage import BlockStorage, block_storage
from znni.plans.cost import Cost, Memory
from znni.plans.segments import Step
from znni.plans.storage_placement import storage_placement

ZERO = Vec3(0, 0, 0)
SPOILT = -1
Tags = NDArray[np.int64]


def tags_of(network: Network, storage: BlockStorage, start: Vec3) -> dict[str, Tags]:
    """Return a number for each sample that is stored of each value (f, z, y, x).

    No two samples within the volume have the same number, but for copies in concatenations. Samples
    outside the whole value are 0.

    Args:
        network: the network.
        storage: the storages of a block.
        start: the first output voxel of the block.
    """
    geometry, found, count = storage.geometry, dict[str, Tags](), 1
    for name, node in {INPUT: None, **{node.name: node for node in network.nodes}}.items():
        stored = geometry.frames[name].stored
        tags = np.arange(network.maps[name] * stored.size.volume) + count
        count += tags.size
        tags = tags.reshape(network.maps[name], *stored.size)
        if node and isinstance(node.layer, Concat):
            made = tags[:, *geometry.frames[name].computed.shifted(ZERO - stored.start).slices]
            first = 0
            for given, box in zip(node.inputs, geometry.reads[name], strict=True):
                seen = box.shifted(ZERO - geometry.frames[given].stored.start)
                made[first : first + network.maps[given]] = found[given][:, *seen.slices]
                first += network.maps[given]
        at = stored.shifted(start // network.strides[name])
        inside = Box(ZERO, geometry.sizes[name]).intersection(at)
        kept = np.zeros_like(tags)
        if inside:
            within = inside.shifted(ZERO - at.start).slices
            kept[:, *within] = tags[:, *within]
        found[name] = kept
    return found


def steps_of(network: Network, storage: BlockStorage, workspace: int) -> Iterator[Step]:
    """Yield the steps of a block, which all take some workspace."""
    for node in storage.steps_of(network.nodes):
        shape, out = storage.shape_taken(node.name, node.inputs), storage.shape_made(node.name)
        step = bare_step(node.layer, shape, out, node.inputs)
        arrays = shape.nbytes + out.nbytes
        yield Step(
            step.operation, step.primitive, shape, out,
            Cost(1, 1, Memory.beside(arrays, workspace), 1), 0.0, 0.0, node.inputs,
        )  # fmt: skip


@settings(max_examples=200)
@given(
    graphs(depth=2, most_maps=3),
    st.builds(Vec3, *[st.integers(1, 12)] * 3),
    st.builds(Vec3, *[st.integers(1, 2)] * 3),
    st.integers(0, 100),
    st.data(),
)
def test_what_a_step_reads_is_what_was_computed(
    network: Network, volume: Vec3, periods: Vec3, workspace: int, data: st.DataObject
) -> None:
    network = over(network, whole_input(network, volume))
    patch = network.alignment * periods
    storage = block_storage(network, patch)
    blocks = storage.geometry.sizes[network.output].ceil_div(patch)
    index = Vec3(*(data.draw(st.integers(0, most - 1)) for most in blocks))
    start = index * patch
    tags = tags_of(network, storage, start)
    steps = tuple(steps_of(network, storage, 4 * workspace))
    placed = storage_placement(steps, storage, alignment=4)
    arena = np.full(placed.size // 4, SPOILT, np.int64)
    outside = tags[INPUT]
    nodes = {node.name: node for node in network.nodes}

    def array_of(name: str, output: int | None = None) -> Tags:
        """Return the maps of a value in its storage."""
        at = storage.locations[name]
        if at.storage == INPUT:
            return outside
        shape = storage.storages[at.storage].shape
        begin = (places[at.storage] if output is None else output) // 4
        whole = arena[begin : begin + shape.f * shape.size.volume].reshape(shape.f, *shape.size)
        return whole[at.first_map : at.first_map + network.maps[name]]

    def check_reads(node: Node) -> None:
        for number, name in enumerate(node.inputs):
            box = storage.geometry.reads[node.name][number]
            wanted = box.shifted(ZERO - storage.geometry.frames[name].stored.start)
            found = array_of(name)[:, *storage.read(node, number).slices]
            np.testing.assert_array_equal(found, tags[name][:, *wanted.slices])

    places: dict[str, int] = {}
    for step, place in zip(steps, placed.places[0], strict=True):
        node = nodes[step.gives]
        check_reads(node)
        assert place.output is not None
        storage_name = storage.locations[node.name].storage
        assert places.setdefault(storage_name, place.output) == place.output
        arena[place.free[0] // 4 : place.free[1] // 4] = SPOILT
        frame = storage.geometry.frames[node.name]
        held, made = array_of(node.name), storage.made(node.name)
        computed = frame.computed.shifted(ZERO - frame.stored.start)
        inside = storage.inside(node.name, start // network.strides[node.name])
        held[:, *made.slices] = tags[node.name][:, *computed.slices]
        for box in Box(ZERO, Vec3(*held.shape[1:])).without(inside):
            held[:, *box.slices] = 0
    last = storage.geometry.frames[network.output]
    computed = last.computed.shifted(ZERO - last.stored.start)
    found = array_of(network.output)[:, *storage.made(network.output).slices]
    np.testing.assert_array_equal(found, tags[network.output][:, *computed.slices])
