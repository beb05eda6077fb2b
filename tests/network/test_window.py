"""Windows over a volume: where they lie, how much they count, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import znni
from znni.core.errors import InvalidInput
from znni.core.option_types import WindowRules
from znni.core.shapes import Box, Vec3, offsets
from znni.network.geometry import block_geometry, over, with_window
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import network_from_text
from znni.network.window import Window

NET = """\
name: net
layers:
  - conv: {features: 4, kernel: 3, padding: same}
  - instance_norm: {activation: relu}
  - pool: {window: 2}
  - group_norm: {groups: 2, eps: 0.001}
  - upsample: {factor: 2}
  - conv: {features: 1, kernel: 1}
"""


@st.composite
def windows(draw: st.DrawFn) -> Window:
    size = Vec3(*(draw(st.integers(1, 9)) for _ in "zyx"))
    volume = Vec3(*(draw(st.integers(1, 25)) for _ in "zyx"))
    overlap = draw(st.sampled_from([0.0, 0.25, 0.5, 0.9]))
    like = draw(st.sampled_from(["monai", "nnunet"]))
    return Window(size, overlap, like=like, volume=volume)


@st.composite
def boxes(draw: st.DrawFn, size: Vec3) -> Box:
    starts = [draw(st.integers(0, extent - 1)) for extent in size]
    stops = [draw(st.integers(a + 1, extent)) for a, extent in zip(starts, size, strict=True)]
    return Box(Vec3(*starts), Vec3(*stops))


# By MONAI 1.6 (dense_patch_slices) and nnU-Net 2.8 (compute_steps_for_sliding_window).
@pytest.mark.parametrize(
    ("like", "starts"),
    [
        ("monai", ((0, 2, 4, 6, 7), (0, 2, 4, 6, 8), (0,))),
        ("nnunet", ((0, 2, 4, 5, 7), (0, 2, 4, 6, 8), (0,))),
    ],
)
def test_places_are_those_of_the_framework(
    like: WindowRules, starts: tuple[tuple[int, ...], ...]
) -> None:
    window = Window(Vec3(4, 5, 6), 0.5, like=like, volume=Vec3(11, 13, 5))
    assert window.starts == starts


def test_windows_of_one_slice_follow_each_other() -> None:
    window = Window(Vec3(1, 4, 4), 0.5, like="nnunet", volume=Vec3(5, 6, 4))
    assert window.starts == ((0, 1, 2, 3, 4), (0, 2), (0,))


# By MONAI 1.6 (compute_importance_map) and nnU-Net 2.8 (compute_gaussian).
@pytest.mark.parametrize(
    ("like", "voxels"),
    [
        ("monai", (1e-3, 0.4856718, 0.4856718, 1e-3)),
        ("nnunet", (6.725128e-09, 10.0, 1.3533528, 0.00023102827)),
    ],
)
def test_weights_are_those_of_the_framework(like: WindowRules, voxels: tuple[float, ...]) -> None:
    found = Window(Vec3(4, 5, 6), like=like).importance()
    at = [(0, 0, 0), (2, 2, 3), (1, 2, 3), (3, 4, 5)]
    np.testing.assert_allclose([found[place] for place in at], voxels, rtol=1e-5)
    assert (Window(Vec3(4, 5, 6), blend="constant").importance() == 1).all()


def test_a_volume_smaller_than_a_window_lies_in_its_middle() -> None:
    window = Window(Vec3(8, 8, 7), volume=Vec3(5, 8, 4))
    assert window.starts == ((-1,), (0,), (-1,))
    assert window.seen() == Box(Vec3(-1, 0, -1), Vec3(7, 8, 6))


@given(st.data())
def test_windows_of_a_box_are_those_that_touch_it(data: st.DataObject) -> None:
    window = data.draw(windows())
    assert window.volume is not None
    box = data.draw(boxes(window.volume))
    every = [Vec3(z, y, x) for x in window.starts[2] for z in window.starts[0]
             for y in window.starts[1]]  # fmt: skip
    touching = [at for at in every if Box(at, at + window.size).intersection(box)]
    assert list(window.touching(box)) == touching
    around = window.around(box)
    assert box.within(around)
    assert around.size.within(window.most_around(box.size))
    for axis, ends in enumerate(zip(*box, strict=True)):
        low, high = window.along(axis).around(*map(np.array, ends))
        assert (low, high) == (around.start[axis], around.stop[axis])
    beyond = around.stop.x - box.stop.x
    if box.stop.x % box.size.x == 0 and box.stop.x < window.volume.x:
        assert beyond <= window.tail(box.size)


@given(st.data(), windows(), st.integers(1, 9))
def test_groups_are_the_same_for_all_blocks_in_a_row(
    data: st.DataObject, window: Window, together: int
) -> None:
    assert window.volume is not None
    window = replace(window, together=together, mirror=data.draw(st.sampled_from(["", "zx"])))
    box = data.draw(boxes(window.volume))
    groups = list(window.groups(box))
    copies = [copy for group in groups for copy in group]
    assert copies == [(at, axes) for at in window.touching(box) for axes in window.flips]
    for group, after in pairwise(groups):
        assert len(group) == together or group[0].start.x < after[0].start.x
    assert all(len(group) <= together for group in groups)
    assert all(len({copy.start.x for copy in group}) == 1 for group in groups)
    whole_row = replace_x(box, 0, window.volume.x)
    assert [it for it in window.groups(whole_row) if it in groups] == groups


def replace_x(box: Box, start: int, stop: int) -> Box:
    return Box(box.start._replace(x=start), box.stop._replace(x=stop))


@given(windows(), st.tuples(*[st.integers(1, 12)] * 3), st.integers(1, 5))
@example(  # with windows that begin at the same voxels
    Window(Vec3(4, 4, 4), 0.9, like="nnunet", volume=Vec3(6, 6, 9)), (6, 6, 5), 3
)
def test_the_mean_number_of_runs_is_that_of_all_blocks(
    window: Window, edges: tuple[int, int, int], together: int
) -> None:
    assert window.volume is not None
    block = Vec3(*edges)
    counts = window.volume.ceil_div(block)
    runs = in_groups = 0
    mirrored = replace(window, mirror="yx")
    some = replace(mirrored, together=together)
    for index in offsets(counts):
        start = index * block
        box = Box(start, (start + block).minimum(window.volume))
        # The block before along x has computed the others.
        runs += sum(1 for at in window.touching(box) if max(at.x, 0) >= start.x)
        in_groups += sum(1 for group in some.groups(box) if max(group[0].start.x, 0) >= start.x)
    assert window.a_block(block) == pytest.approx(runs / counts.volume)
    assert mirrored.a_block(block) == pytest.approx(4 * runs / counts.volume)
    assert some.a_block(block) == pytest.approx(in_groups / counts.volume)


@given(windows(), st.integers(1, 12))
def test_the_last_blocks_of_a_row_may_find_all_their_windows_computed(
    window: Window, extent: int
) -> None:
    computed, idle = set[int](), 0
    for begin in range(0, window.output.x, extent):
        stop = window.output._replace(x=min(begin + extent, window.output.x))
        own = {at.x for at in window.touching(Box(Vec3(0, 0, begin), stop))} - computed
        computed |= own
        idle = 0 if own else idle + 1
    assert window.last_without_windows(Vec3(1, 1, extent)) == idle
    assert replace(window, in_order=False).last_without_windows(Vec3(1, 1, extent)) == 0


def test_copies_are_mirrored_along_all_sets_of_axes() -> None:
    assert Window(Vec3(2, 2, 2)).flips == ((),)
    assert Window(Vec3(2, 2, 2), mirror="xz").flips == ((), (0,), (2,), (0, 2))


def test_a_network_file_keeps_its_windows_and_norms() -> None:
    text = NET + "window: {size: [8, 16, 16], overlap: 0.25, mirror: [y, x], like: nnunet}\n"
    network = network_from_text(text, "net.yaml")
    assert network.window == Window(Vec3(8, 16, 16), 0.25, mirror="yx", like="nnunet")
    again = network_from_text(network_text(network), "net.yaml")
    assert (again.nodes, again.window) == (network.nodes, network.window)
    assert "instance norm of 4 maps" not in str(network)
    assert "windows of 8x16x16 that overlap by 0.25" in str(network)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "window: {size: [8, 15, 16]}",
            "joins do not fit; give 8x16x16 or 8x14x16",
        ),
        ("window: {size: 8, overlap: 1}", "overlap by 1.0; give a share from 0 to less than 1"),
        ("window: {size: 8, mirror: zz}", "give some of z, y and x, each once, or none"),
        ("window: {size: 8, like: itk}", "unknown like 'itk'; choose one of monai, nnunet"),
        ("window: {overlap: 0.5}", "lacks the key 'size'"),
        ("window: {size: 0}", "give an integer from 1"),
    ],
)
def test_windows_that_cannot_be_are_refused(line: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        network_from_text(f"{NET}{line}\n", "net.yaml")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("norm", "said"),
    [
        ("group_norm: {groups: 3}", "has 3 groups for 4 maps; give a number of groups that"),
        ("group_norm: {}", "lacks the key 'groups'"),
        ("instance_norm: {eps: -1}", "eps is -1; give 0 or more"),
    ],
)
def test_norms_that_cannot_be_are_refused(norm: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        network_from_text(NET.replace("instance_norm: {activation: relu}", norm), "net.yaml")
    assert said in str(refused.value)


def valid_network() -> Network:
    text = "name: net\nlayers:\n  - conv: {features: 1, kernel: 3}\n"
    return network_from_text(text, "net.yaml")


def test_windows_must_keep_their_size() -> None:
    with pytest.raises(InvalidInput, match="gives 6x6x6 voxels for a window of 8x8x8"):
        with_window(valid_network(), Window(Vec3(8, 8, 8)))


def test_a_network_that_slides_over_the_volume_takes_no_windows() -> None:
    with pytest.raises(InvalidInput, match=r"n337 slides over the volume .*; leave them out"):
        znni.with_window("n337", Window(Vec3(100, 100, 100)))
    text = "name: net\nwindow: {size: [9, 9, 9]}\nlayers:\n  - conv: {features: 1, kernel: 3}\n"
    with pytest.raises(InvalidInput, match=r"net\.yaml, line 2: network net slides over"):
        network_from_text(f"{text}  - pool: {{window: 2}}\n", "net.yaml")


def test_windows_may_be_given_in_plain_numbers() -> None:
    size: Any = [8, np.int64(12), 16]
    made = Window(size, mirror="xz")
    assert made == Window(Vec3(8, 12, 16), 0.5, mirror="zx")
    assert isinstance(made.size, Vec3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"size": 8}, "the size of a window is 8; give three extents"),
        ({"size": (8, 8, 8), "together": 0}, "0 windows are computed at once; give an integer"),
        ({"size": (8, 8)}, "give three extents of 1 or more"),
        ({"size": (8, 8, 8.5)}, "give three extents of 1 or more"),
        ({"overlap": "0.5"}, "give a share from 0 to less than 1"),
        ({"mirror": ["z", "y"]}, "give some of z, y and x"),
        ({"blend": "gauss"}, "blend is 'gauss'; choose one of gaussian, constant"),
        ({"like": "nnUNet"}, "like is 'nnUNet'; choose one of monai, nnunet"),
    ],
)
def test_windows_that_make_no_sense_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Window(**({"size": Vec3(8, 8, 8)} | wrong))


def test_a_network_is_also_given_by_its_name() -> None:
    window = Window(Vec3(16, 16, 16))
    made = znni.with_window("cells-unet", window)
    assert made.window == window
    assert made == znni.with_window(znni.load_network("cells-unet"), window)
    with pytest.raises(InvalidInput, match=r"nothing\.onnx: no such model file"):
        znni.with_window("nothing.onnx", window)


def test_layers_compute_the_same_block_whatever_the_patch_if_there_are_windows() -> None:
    window = Window(Vec3(8, 4, 6), volume=Vec3(20, 20, 20))
    network = over(with_window(network_from_text(NET, "net.yaml"), window), window.size)
    one, other = (block_geometry(network, Vec3.of(extent)) for extent in (4, 20))
    assert one is other
    assert one.frames[network.output].computed.size == window.size
