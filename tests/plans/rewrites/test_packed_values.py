"""Packed values of a block: as many as can be, and every step agrees about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.tiled_segments import tiled_segment
from znni.core.shapes import Shape5, Vec3
from znni.network.geometry import over, whole_input
from znni.network.layers import Concat, Conv, PackedLayer, Pool
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.node import INPUT
from znni.plans.array_layout import packed_storages, storage_bytes
from znni.plans.block_storage import BlockStorage, block_storage
from znni.plans.rewrites.block_steps import BlockSteps
from znni.plans.rewrites.packed_rules import follow_rules
from znni.plans.rewrites.packed_values import Computes, packed_values
from znni.plans.segments import Segment

UNET = """\
name: unet
in_features: 1
layers:
  - conv: {{features: 8, kernel: 3, padding: same, activation: relu}}
  - name: skip
    conv: {{features: {skip}, kernel: 3, padding: same, activation: relu}}
  - pool: {{window: 2, stride: 2}}
  - name: deep
    conv: {{features: {deep}, kernel: 3, padding: same}}
  - upsample: {{factor: 2}}
  - concat: {{}}
    from: [skip, upsample1]
  - name: after
    conv: {{features: 8, kernel: 3, padding: same, activation: elu}}
  - name: last
    conv: {{features: 2, kernel: 1}}
"""


def unet(skip: int = 16, deep: int = 24) -> tuple[Network, BlockStorage]:
    network = network_from_text(UNET.format(skip=skip, deep=deep), "unet")
    network = over(network, Vec3(16, 16, 16))
    return network, block_storage(network, Vec3(8, 8, 8))


def packed(
    network: Network, storage: BlockStorage, computes: Computes, parts: int = 1
) -> BlockSteps:
    """The steps of a block, of which as many as can be take and make packed values."""
    steps = BlockSteps.layer_by_layer(network.nodes, storage)
    return steps.after(packed_values(steps, computes, parts))


def packed_names(network: Network, storage: BlockStorage, *, pools: bool = True) -> set[str]:
    """The steps that write packed values, with or without a pooling that can."""
    steps = packed(
        network, storage, lambda operation, _: pools or not isinstance(operation.layer, Pool)
    )
    return {name for name in steps.operations if (it := steps.packed(name)) and it.writes}


def test_all_but_input_and_output_are_packed() -> None:
    network, storage = unet()
    steps = {node.name for node in storage.steps_of(network.nodes)}
    assert packed_names(network, storage) == steps - {"last"}
    found = packed(network, storage, lambda *_: True)
    first, last = found.packed("conv1"), found.packed("last")
    assert first is not None
    assert last is not None
    assert (first.reads, first.writes) == (False, True)
    assert (last.reads, last.writes) == (True, False)


@pytest.mark.parametrize(
    ("skip", "deep", "packed"),
    [
        (16, 24, {"conv1", "skip", "pool1", "deep", "upsample1", "after"}),
        (24, 16, {"conv1", "after"}),  # of values that are joined, the first has 16 maps together
        (16, 20, {"conv1", "skip", "pool1", "deep", "upsample1", "after"}),
        (16, 4, {"conv1", "after"}),  # 4 maps would leave half of their group to others
        (12, 32, {"conv1", "after"}),
    ],
)
def test_values_that_are_connected_are_packed_together(
    skip: int, deep: int, packed: set[str]
) -> None:
    assert packed_names(*unet(skip, deep)) - {"concat1"} == packed


def test_a_layer_that_reads_no_packed_values_keeps_those_around_it_from_that() -> None:
    network, storage = unet()
    assert packed_names(network, storage, pools=False) == {"conv1", "after"}


@pytest.mark.parametrize("parts", [1, 2])
def test_packed_storages_take_two_bytes_for_each_part_and_have_no_gaps(parts: int) -> None:
    network, storage = unet()
    segment = tiled_segment(packed(network, storage, lambda *_: True, parts), "gpu")
    holding = packed_storages(segment.steps, storage)
    for name, found in storage.storages.items():
        if name in holding:
            assert storage_bytes(name, storage, "gpu", holding) == parts * found.shape.nbytes // 2
    assert INPUT not in holding
    assert storage.locations[network.output].storage not in holding


def wrong(segment: Segment, index: int) -> Iterator[Segment]:
    """The segment with a step that reads other values than are made."""
    steps = list(segment.steps)
    operation = steps[index].operation
    assert isinstance(operation, PackedLayer)
    for other in (replace(operation, reads=not operation.reads), replace(operation, parts=2)):
        steps[index] = replace(steps[index], operation=other)
        yield replace(segment, steps=tuple(steps))


@settings(max_examples=60)
@given(graphs(depth=2, most_maps=40), st.builds(Vec3, *[st.integers(1, 20)] * 3), st.data())
def test_steps_of_any_network_agree(network: Network, volume: Vec3, data: st.DataObject) -> None:
    network = over(network, whole_input(network, volume))
    storage = block_storage(network, network.alignment)
    unable = set(data.draw(st.lists(st.sampled_from([it.name for it in network.nodes]))))

    def computes(operation: PackedLayer, shape: Shape5) -> bool:
        assert not operation.reads or 2 * shape.f > 8
        return operation.name not in unable

    steps = packed(network, storage, computes)
    segment = tiled_segment(steps, "gpu")
    assert follow_rules(segment.steps, network.nodes, storage)
    assert not any(map(steps.packed, unable))
    for index, step in enumerate(segment.steps):
        operation = step.operation
        if isinstance(operation, PackedLayer):
            assert isinstance(operation.layer, Conv) or operation.reads == operation.writes
            for other in wrong(segment, index):
                assert not follow_rules(other.steps, network.nodes, storage)
        if isinstance(step.layers[0], Concat) and isinstance(operation, PackedLayer):
            assert all(storage.maps[name] % 16 == 0 for name in step.takes[:-1])
