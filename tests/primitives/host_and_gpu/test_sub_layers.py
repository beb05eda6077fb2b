"""Layers in pieces: any division gives the layer's numbers, in the bytes that it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from fakes import Fake
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import extents, inputs, random_weights, seeds

from bench import reference
from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.network.layers import Activation, Conv
from znni.network.weights import Float32
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.activation import EXPRESSIONS
from znni.primitives.host_and_gpu.host_ram import build_parts
from znni.primitives.host_and_gpu.splits import Split, splits
from znni.primitives.host_and_gpu.sub_layer_loop import compute_sub_layers
from znni.primitives.host_and_gpu.sub_layers import SubLayers

HIDDEN = Conv("hidden", 80, 80, Vec3(5, 5, 5), "relu")
MANY = Shape5(8, 80, 104, 104, 104)
ONE = MANY._replace(n=1)


class Event(NamedTuple):
    """A position in a stream's work."""

    stream: ShuffledStream
    position: int


class ShuffledStream:
    """Runs its work in order; each piece waits for the events before it."""

    def __init__(self) -> None:
        self.done = 0
        self.asked: list[Callable[[], None] | Event] = []

    def record(self) -> Event:
        return Event(self, len(self.asked))

    def wait_event(self, event: Event) -> None:
        self.asked.append(event)

    @property
    def ready(self) -> bool:
        """Return whether the next piece of work may begin."""
        if self.done == len(self.asked):
            return False
        work = self.asked[self.done]
        return not isinstance(work, Event) or work.stream.done >= work.position

    def step(self) -> None:
        work = self.asked[self.done]
        if not isinstance(work, Event):
            work()
        self.done += 1


class ShuffledLanes:
    """Lanes without a GPU. They run pieces of random streams when a caller waits for the work."""

    def __init__(self, activation: Activation, seed: int) -> None:
        self.uploading, self.computing, self.downloading = (ShuffledStream() for _ in range(3))
        self.allocated = 0
        self.uploaded = 0
        self.downloaded = 0
        self._activation: Activation = activation
        self._random = Random(seed)

    def buffer(self, shape: Shape5) -> Float32:
        self.allocated += shape.nbytes
        return np.full(shape, np.nan, np.float32)

    def upload(self, x: Float32, into: Float32) -> None:
        self.uploaded += x.nbytes
        self.uploading.asked.append(lambda: np.copyto(into, x))

    def download(self, y: Float32, into: Float32) -> None:
        self.downloaded += y.nbytes
        self.downloading.asked.append(lambda: np.copyto(into, y))

    def call(self, run: Run, x: Float32, into: Float32) -> None:
        def work() -> None:
            with output_into(into):
                run(x)

        self.computing.asked.append(work)

    def add(self, partial: Float32, into: Float32, *, last: bool) -> None:
        def work() -> None:
            np.add(into, partial, out=into)
            if last:
                into[...] = reference.activation(into, self._activation)

        self.computing.asked.append(work)

    def wait(self) -> None:
        streams = self.uploading, self.computing, self.downloading
        while ready := [stream for stream in streams if stream.ready]:
            self._random.choice(ready).step()
        assert all(stream.done == len(stream.asked) for stream in streams), "streams wait for ever"


def divided(layer: Conv, shape: Shape5, split: Split) -> SubLayers:
    out = convolved(layer, shape)
    assert out is not None
    return SubLayers(layer, shape, out, split)


@st.composite
def sub_layers(draw: st.DrawFn) -> SubLayers:
    """Any layer, divided in any way that is considered."""
    maps = st.sampled_from([1, 2, 3, 5, 18, 35])
    activation = draw(st.sampled_from(sorted(EXPRESSIONS)))
    layer = Conv("layer", draw(maps), draw(maps), draw(extents(1, 3)), activation)
    size = layer.kernel + draw(extents(0, 4))
    shape = Shape5.of(draw(st.sampled_from([1, 2, 4, 6])), layer.in_features, size)
    out = convolved(layer, shape)
    assert out is not None
    return SubLayers(layer, shape, out, draw(st.sampled_from(list(splits(layer, shape, out)))))


@settings(max_examples=60)
@given(parts=sub_layers(), make_input=inputs, seed=seeds)
def test_every_division_is_the_reference(parts: SubLayers, make_input: object, seed: int) -> None:
    x = make_input(parts.shape, seed)  # type: ignore[operator]
    before = x.copy()
    weights = random_weights(parts.layer, seed)
    expected = reference.convolution(x, parts.layer, weights)
    runs = build_parts(Fake("base", convolved), parts, weights)
    lanes = ShuffledLanes(parts.layer.activation, seed)
    y = np.full(parts.out, np.nan, np.float32)
    compute_sub_layers(lanes, parts, runs, x, y)
    lanes.wait()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(x, before)
    amounts = parts.amounts
    assert lanes.allocated == amounts.buffer_bytes
    assert (lanes.uploaded, lanes.downloaded) == (amounts.uploaded, amounts.downloaded)


@given(parts=sub_layers())
def test_the_parts_of_the_weights_are_counted_by_what_they_make(parts: SubLayers) -> None:
    assert parts.block_counts == Counter(parts.blocks.values())
    assert len(parts.block_counts) <= 4


def test_a_batch_is_divided_first_then_planes_then_maps() -> None:
    out = divided(HIDDEN, MANY, Split(8, 100, 80, 80)).out
    found = list(splits(HIDDEN, MANY, out))
    alone = [split for split in found if split.items > 1]
    assert {(s.planes, s.outs, s.ins) for s in alone} == {(100, 80, 80)}
    assert {split.outs for split in found} == {80, 48, 32, 10, 5, 3, 2, 1}
    assert found[0] == Split(1, 50, 80, 80)
    within = list(splits(HIDDEN, MANY, out, 2**20))
    assert within == [s for s in found if divided(HIDDEN, MANY, s).amounts.buffer_bytes <= 2**20]
    assert within[0].outs < 80


def test_softmax_keeps_its_maps_together() -> None:
    last = Conv("last", 80, 3, Vec3(3, 3, 3), "softmax")
    shape = Shape5(1, 80, 9, 9, 9)
    found = list(splits(last, shape, Shape5(1, 3, 7, 7, 7)))
    assert {split.outs for split in found} == {3}
    assert {split.ins for split in found} > {1, 80}


def test_what_is_on_its_way() -> None:
    """Each input once, unless its maps are divided: then once for each part of the output."""
    each_in, each_out = ONE.nbytes, 4 * 80 * 100**3
    whole = divided(HIDDEN, MANY, Split(8, 100, 80, 80)).amounts
    assert (whole.uploaded, whole.downloaded) == (8 * each_in, 8 * each_out)
    assert whole.buffer_bytes == 8 * (each_in + each_out)
    single = divided(HIDDEN, MANY, Split(1, 100, 80, 80)).amounts
    assert (single.uploaded, single.downloaded) == (8 * each_in, 8 * each_out)
    assert single.buffer_bytes == 2 * (each_in + each_out)
    outs = divided(HIDDEN, MANY, Split(1, 100, 32, 80)).amounts
    assert (outs.inputs, outs.outputs, outs.uploaded) == (8, 24, 8 * each_in)
    assert outs.buffer_bytes == 2 * each_in + 2 * each_out * 32 // 80
    both = divided(HIDDEN, MANY, Split(1, 100, 32, 16)).amounts
    assert (both.inputs, both.outputs, both.uploaded) == (8 * 3 * 5, 24, 8 * 3 * each_in)
    assert both.buffer_bytes == 2 * each_in * 16 // 80 + 3 * each_out * 32 // 80
    slabs = divided(HIDDEN, MANY, Split(1, 25, 80, 80)).amounts
    assert slabs.uploaded == 8 * 4 * each_in * 29 // 104
    assert slabs.downloaded == 8 * each_out


def test_the_last_slab_is_shifted_back() -> None:
    slabs = divided(HIDDEN, ONE, Split(1, 30, 80, 80))
    assert [piece.planes for piece in slabs] == [(0, 30), (30, 60), (60, 90), (70, 100)]


def test_a_layer_takes_as_long_as_its_slowest_stage_and_one_piece_of_the_others() -> None:
    parts = divided(HIDDEN, MANY, Split(1, 100, 80, 80))
    up, down = parts.amounts.uploaded / 5e10, parts.amounts.downloaded / 5e10
    assert parts.seconds(5e10, 0.0) == pytest.approx((7 * up + up + down) / 8)
    assert parts.seconds(5e10, 8.0) == pytest.approx(8 + (up + down) / 8)
    assert parts.seconds(float("inf"), 8.0) == 8.0
