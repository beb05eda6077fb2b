"""Storages of blocks: each value is unspoilt in memory when a step of a tiled network reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from fused_steps import with_fusions
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.tiled_segments import tiled_segment
from znni.core.shapes import ZERO, Box, Vec3
from znni.network.geometry import block_geometry, over, whole_input
from znni.network.layers import Activation, Add, Affine, Concat, Conv, Padding
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.plans.array_layout import device_rows, storage_bytes
from znni.plans.block_storage import BlockStorage, block_storage
from znni.plans.cost import Cost, Memory
from znni.plans.device_partition import DevicePart
from znni.plans.program import Edges, program_of
from znni.plans.rewrites.block_steps import BlockSteps
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.segments import Segment, Step
from znni.plans.storage_sharing import needs_zeros

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


def steps_of(
    network: Network, storage: BlockStorage, workspace: int, *, fused: bool
) -> Iterator[Step]:
    """Yield the steps of a block, which all take some workspace.

    With ``fused``, convolutions add to other values as they store, wherever they may.
    """
    found = BlockSteps.layer_by_layer(network.nodes, storage)
    if fused:
        found = with_fusions(found, fusions(network).values())
    for step in tiled_segment(found).steps:
        memory = Memory.beside(step.shape_in.nbytes + step.shape_out.nbytes, workspace)
        yield replace(step, cost=Cost(1, 1, memory, 1))


def part_of(storage: BlockStorage, steps: tuple[Step, ...]) -> DevicePart:
    """Return the part of a plan that consists of a block's steps."""
    segment = Segment("cpu", storage.items, steps, is_tiled=True)
    return DevicePart((segment,), storage.storages[INPUT].shape, storage=storage)


def edges_of(network: Network, part: DevicePart, start: Vec3) -> list[Edges]:
    """Return the edges of each step, for a block that begins at this voxel."""
    return list(program_of(network, part, 4, 0).edges(start).values())


@pytest.mark.slow
@settings(max_examples=80)
@given(
    graphs(depth=2, most_maps=3),
    st.builds(Vec3, *[st.integers(1, 12)] * 3),
    st.builds(Vec3, *[st.integers(1, 2)] * 3),
    st.integers(0, 100),
    st.booleans(),
    st.data(),
)
def test_what_a_step_reads_is_what_was_computed(
    network: Network,
    volume: Vec3,
    periods: Vec3,
    workspace: int,
    fused: bool,
    data: st.DataObject,
) -> None:
    network = over(network, whole_input(network, volume))
    patch = network.alignment * periods
    blocks = block_geometry(network, patch).sizes[network.output].ceil_div(patch)
    index = Vec3(*(data.draw(st.integers(0, most - 1)) for most in blocks))
    check_block(network, patch, index * patch, 4 * workspace, fused=fused)


def conv(name: str, taken: int, given: int, activation: Activation = "relu") -> Conv:
    one = Vec3(1, 1, 1)
    return Conv(name, taken, given, Vec3(3, 3, 3), activation, padding=Padding(one, one))


READ_AGAIN = {
    "as zeros beyond a join that crops it": (
        Node(conv("a", 1, 4), (INPUT,)),
        Node(Conv("b", 4, 4, Vec3(3, 3, 3), "relu"), ("a",)),
        Node(conv("c", 4, 4), ("a",)),
        Node(Concat("k"), ("b", "c")),
        Node(conv("last", 8, 1), ("k",)),
    ),
    "by the convolution that adds to it": (
        Node(conv("big", 1, 100), (INPUT,)),
        Node(conv("x", 100, 4), ("big",)),
        Node(conv("q", 4, 4), ("x",)),
        Node(Concat("k"), ("x", "q")),
        Node(conv("c", 4, 8, "identity"), ("x",)),
        Node(Add("s"), ("c", "k")),
        Node(conv("last", 8, 1), ("s",)),
    ),
    "after a sum over its concatenation": (
        Node(conv("p", 1, 4), (INPUT,)),
        Node(conv("q", 4, 4), ("p",)),
        Node(Concat("k"), ("p", "q")),
        Node(conv("b", 8, 4), ("k",)),
        Node(conv("c", 4, 8, "identity"), ("b",)),
        Node(Add("s"), ("c", "k")),
        Node(conv("z", 8, 4), ("s",)),
        Node(conv("y", 4, 4), ("p",)),
        Node(Concat("o"), ("y", "z")),
        Node(conv("last", 8, 1), ("o",)),
    ),
    "after an affine layer over its concatenation": (
        Node(conv("p", 1, 4), (INPUT,)),
        Node(conv("q", 4, 4), ("p",)),
        Node(Concat("k"), ("p", "q")),
        Node(Affine("s", 8, "relu"), ("k",)),
        Node(conv("z", 8, 4), ("s",)),
        Node(conv("y", 4, 4), ("p",)),
        Node(Concat("o"), ("y", "z")),
        Node(conv("last", 8, 1), ("o",)),
    ),
}


@pytest.mark.parametrize("nodes", READ_AGAIN.values(), ids=READ_AGAIN)
@pytest.mark.parametrize("fused", [False, True], ids=["two steps", "one step"])
def test_a_value_in_a_concatenation_is_read_again(nodes: tuple[Node, ...], fused: bool) -> None:
    network = over(Network("again", 1, nodes, "last"), Vec3(8, 8, 8))
    for patch in (Vec3(8, 8, 8), Vec3(4, 4, 4)):
        check_block(network, patch, ZERO, 0, fused=fused)


def finish(held: Tags, made: Box, inside: Box, *, cleared: bool) -> None:
    """Set what lies outside the volume to 0, or spoil what a step made there."""
    whole = Box(ZERO, Vec3(*held.shape[1:])) if cleared else made
    for box in whole.without(inside):
        held[:, *box.slices] = 0 if cleared else SPOILT


def check_block(network: Network, patch: Vec3, start: Vec3, workspace: int, *, fused: bool) -> None:
    """Go through a block's steps, with a number for each sample in place of its value.

    Args:
        network: a network for a volume.
        patch: the output voxels of the block.
        start: its first voxel.
        workspace: bytes that each step spoils beside its output.
        fused: whether convolutions add as they store, wherever they may.
    """
    storage = block_storage(network, patch)
    tags = tags_of(network, storage, start)
    steps = tuple(steps_of(network, storage, workspace, fused=fused))
    part = part_of(storage, steps)
    placed, edges = part.placement(alignment=4), edges_of(network, part, start)
    arena = np.full(placed.size // 4, SPOILT, np.int64)
    nodes = {node.name: node for node in network.nodes}

    def array_of(name: str) -> Tags:
        """Return the maps of a value in its storage."""
        at = storage.locations[name]
        if at.storage == INPUT:
            return tags[INPUT]
        shape = storage.storages[at.storage].shape
        begin = placed.starts[at.storage] // 4
        whole = arena[begin : begin + shape.f * shape.size.volume].reshape(shape.f, *shape.size)
        return whole[at.first_map : at.first_map + network.maps[name]]

    def check_read(node: Node, number: int) -> None:
        name = node.inputs[number]
        box = storage.geometry.reads[node.name][number]
        wanted = box.shifted(ZERO - storage.geometry.frames[name].stored.start)
        found = array_of(name)[:, *storage.read(node, number).slices]
        expected = tags[name][:, *wanted.slices]
        if not needs_zeros(node.layer):
            found = np.where(expected, found, 0)  # only samples within the value matter
        np.testing.assert_array_equal(found, expected)

    def check_reads(node: Node) -> None:
        for number in range(len(node.inputs)):
            check_read(node, number)

    for step, edge, (low, high) in zip(steps, edges, placed.room, strict=True):
        node = nodes[step.gives]
        fusion = fusions(network).get(tuple(layer.name for layer in step.layers))
        if fusion is None:
            check_reads(node)
        elif step.takes[-1] in node.inputs:
            check_read(node, node.inputs.index(step.takes[-1]))
        else:  # the value between both layers is not stored
            check_reads(fusion.nodes[0])
        arena[low // 4 : high // 4] = SPOILT
        frame = storage.geometry.frames[node.name]
        held, made = array_of(node.name), storage.computed_box(node.name)
        computed = frame.computed.shifted(ZERO - frame.stored.start)
        inside = storage.inside(node.name, start // network.strides[node.name])
        held[:, *made.slices] = tags[node.name][:, *computed.slices]
        finish(held, made, inside, cleared=edge.inside is not None)
        if fusion:  # the convolution reads on after it has stored some of the sum
            check_reads(fusion.nodes[0])
    last = storage.geometry.frames[network.output]
    computed = last.computed.shifted(ZERO - last.stored.start)
    wanted = tags[network.output][:, *computed.slices]
    found = array_of(network.output)[:, *storage.computed_box(network.output).slices]
    np.testing.assert_array_equal(np.where(wanted, found, 0), wanted)


def test_samples_outside_are_cleared_once() -> None:
    nodes = (
        Node(conv("a", 1, 4), (INPUT,)),
        Node(conv("b", 4, 4), ("a",)),
        Node(conv("c", 4, 4, "identity"), ("b",)),
        Node(Add("s"), ("c", "a")),
        Node(conv("d", 4, 4), ("s",)),
        Node(Conv("last", 4, 1, Vec3(1, 1, 1), "identity"), ("d",)),
    )
    patch, cleared = Vec3(8, 8, 8), []
    for volume, start in ((patch, ZERO), (patch * Vec3(3, 1, 1), patch * Vec3(1, 0, 0))):
        network = over(Network("block", 1, nodes, "last"), volume)
        storage = block_storage(network, patch)
        steps = tuple(steps_of(network, storage, 0, fused=True))
        found = zip(steps, edges_of(network, part_of(storage, steps), start), strict=True)
        cleared.append([step.gives for step, edges in found if edges.inside])
        check_block(network, patch, start, 0, fused=True)
    # The sum is made where "a" is, and only within the volume. In a block of a larger volume it has
    # samples outside, too.
    assert cleared == [["a", "b"], ["a", "b", "s"]]


@pytest.mark.slow
@settings(max_examples=50)
@given(graphs(depth=2, most_maps=3), st.builds(Vec3, *[st.integers(1, 20)] * 3), st.booleans())
def test_rows_on_a_gpu_begin_at_sectors_and_stay_within_their_place(
    network: Network, volume: Vec3, views: bool
) -> None:
    network = over(network, whole_input(network, volume))
    storage = block_storage(network, network.alignment)
    shapes = {node.name: storage.computed_shape(node.name) for node in network.nodes}
    steps = tuple(
        Step(
            node.layer, "some", shapes[node.name], shapes[node.name],
            Cost(0, 0, Memory(0, 0, 0), 1, writes_views=views), 1.0, 0.0, node.inputs,
        )
        for node in storage.steps_of(network.nodes)
    )  # fmt: skip
    for name in {storage.locations[step.gives].storage for step in steps} - {INPUT}:
        first, pitch = device_rows(name, steps, storage)
        shape = storage.storages[name].shape
        taken = first + pitch * shape.n * shape.f * shape.z * shape.y
        assert 4 * taken <= storage_bytes(name, storage, "gpu")
        assert pitch >= shape.x
        maker = next(s.gives for s in steps if storage.locations[s.gives].storage == name)
        if views:
            assert (first + storage.computed_box(maker).start.x) % 8 == pitch % 8 == 0
        else:
            assert (first, pitch) == (0, shape.x)
