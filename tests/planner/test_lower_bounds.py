"""Lower bounds, which rule patches out: no plan is faster."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from typing import Literal

import numpy as np
import pytest
from fake_stages import time_of
from fakes import Fake, fake_catalogue, fake_gpu_catalogue, gpu, machine
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import MACHINES, NETWORKS
from planner_cases import (
    CHOICES,
    COLD,
    CONV,
    CONVOLUTIONS,
    NETWORK,
    NO_OVERHEAD,
    SLOW_TO_START,
    bound_of_patch,
    bound_with_prices,
)

import znni.inference.planning
from planner.bare_steps import bare_step, sample_steps
from planner.bounds import computing_pieces
from planner.cost_model import BUILT_IN
from planner.device_search import DeviceSearch
from planner.overhead import Load, Overhead, SecondsOnce
from planner.partition import CutPoint
from planner.patch_order import quick_bounds
from planner.search import Search
from znni.core.processors import DeviceChoice, DeviceKind
from znni.core.shapes import Shape5, Vec3
from znni.engine.stages.blend import BlendModel
from znni.engine.stages.convert import ConvertModel
from znni.engine.stages.download import DownloadModel
from znni.engine.stages.label import LabelModel
from znni.engine.stages.layers import LayersModel
from znni.engine.stages.read import ReadModel
from znni.engine.stages.share import ShareModel
from znni.engine.stages.upload import UploadModel
from znni.engine.stages.write import WriteModel
from znni.network.geometry import over, with_window
from znni.network.layers import Conv, Operation, Pool
from znni.network.network import Network
from znni.network.window import Window
from znni.plans.cost import Cost, Memory
from znni.plans.job_seconds import SecondsAround
from znni.plans.primitive import UsesGpu, convolved, convolved_and_pooled, on_device
from znni.plans.stored_values import InputChunks, Stored
from znni.primitives.catalogue import catalogue

FIRST = Conv("conv1", 1, 80, Vec3(2, 2, 2), "relu")  # of n337
HIDDEN = Conv("conv2", 80, 80, Vec3(3, 3, 3), "relu")


class Tiled(Fake):
    """A primitive that computes only whole tiles of 22 voxels per axis."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        out = convolved(layer, shape)
        assert out is not None
        computed = out.n * out.f * (out.size.ceil_div(22) * 22).volume
        memory = Memory.beside(shape.nbytes + out.nbytes, workspace=0)
        return Cost(float(computed), 0.0, memory, 1.0)


@pytest.mark.slow
def test_no_shape_is_faster_per_voxel_than_the_bound() -> None:
    """Tiles have 22 outputs, as in overlap-save. Few extents are a multiple of 22."""
    by_tiles = Tiled("tiled", convolved, flops=1.0)
    network = Network.chain("one", 1, (CONV,))
    for extent in (22, 44, 66, 220):
        plan = Search(
            network, Vec3.of(extent), machine(10**9), fake_catalogue(by_tiles), NO_OVERHEAD
        ).fastest()[0]
        output, tiled = Vec3.of(extent), {"tiled": by_tiles}
        search = Search(network, output, machine(10**9), tiled, NO_OVERHEAD, BUILT_IN, "none")
        assert bound_of_patch(search, plan.patch) <= plan.seconds
        assert bound_with_prices(search, plan.patch) <= plan.seconds


@pytest.mark.slow
def test_no_plan_is_faster_than_the_bound_with_fused_steps() -> None:
    """Three cases: all steps are fused, none is, or layers get their bounds from both."""
    for flops in (2.0, 60.0, 90.0, 400.0):
        fused = Fake("fused", convolved_and_pooled, flops=flops)
        catalogue = fake_catalogue(*CONVOLUTIONS, fused)
        for memory in (60_000, 200_000, 10**9):
            for output in (Vec3(12, 20, 24), Vec3(24, 24, 24)):
                plan = Search(NETWORK, output, machine(memory), catalogue, NO_OVERHEAD).fastest()[0]
                search = Search(
                    NETWORK, output, machine(memory), catalogue, NO_OVERHEAD, BUILT_IN, "none"
                )
                assert bound_of_patch(search, plan.patch) <= plan.seconds
                assert bound_with_prices(search, plan.patch) <= plan.seconds


@cache
def using_gpu(name: str) -> DeviceSearch:
    """Return the search for layers of n337 on a host whose GPU they may compute on."""
    network, there = NETWORKS / "n337.yaml", MACHINES / f"{name}.yaml"
    search = znni.inference.planning.search(
        network, (512, 512, 512), machine=there, costs="built-in"
    )
    return search._searches["host using gpu"]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    conv=st.sampled_from([FIRST, HIDDEN]),
    batch=st.sampled_from([1, 2, 8, 60, 512]),
    size=st.builds(Vec3, *3 * [st.one_of(st.integers(1, 40), st.integers(30, 600))]),
    name=st.sampled_from(["titanx-e7", "h200-node"]),
)
def test_no_layer_that_may_use_a_gpu_is_faster_than_its_bound(
    conv: Conv, batch: int, size: Vec3, name: str
) -> None:
    shape = Shape5.of(batch, conv.in_features, size + conv.kernel - 1)
    step = bare_step(conv, shape, Shape5.of(batch, conv.out_features, size))
    part = using_gpu(name)
    for way in part._options(step):
        assert part.bounds.of_step(step) <= way.seconds


@pytest.mark.parametrize("name", ["titanx-e7", "h200-node"])
def test_such_bounds_are_near(name: str) -> None:
    """The Titan X computes for six times as long as its input takes to arrive."""
    step = bare_step(HIDDEN, Shape5(64, 80, 130, 130, 130), Shape5(64, 80, 128, 128, 128))
    part = using_gpu(name)
    assert part._options(step)[0].seconds < 1.3 * part.bounds.of_step(step)


@settings(max_examples=40)
@given(
    conv=st.sampled_from([FIRST, HIDDEN]),
    batch=st.sampled_from([1, 2, 8, 60]),
    size=st.builds(Vec3, *3 * [st.one_of(st.integers(1, 40), st.integers(30, 600))]),
)
def test_no_primitive_is_faster_than_its_own_bound(conv: Conv, batch: int, size: Vec3) -> None:
    """A search prices a primitive only if its bound is low enough."""
    options = on_host()._options
    shape = Shape5.of(batch, conv.in_features, size + conv.kernel - 1)
    out = Shape5.of(batch, conv.out_features, size)
    call = options.prices.call(conv, shape, out)
    for least, primitive in call._waiting:
        if offer := options.prices.priced(primitive, conv, shape, out):
            assert least <= offer.seconds


def test_a_machine_without_a_gpu_has_no_cut_point_for_one() -> None:
    """Otherwise each patch would be asked for bounds that are infinite."""
    alone, both = (
        Search(NETWORK, Vec3.of(24), there, CHOICES, NO_OVERHEAD)
        for there in (machine(10**9), replace(machine(10**9), gpus=(gpu(10**9),)))
    )
    assert alone.cut_points == alone.on("cpu").cut_points
    assert len(both.cut_points) > len(alone.cut_points)


@cache
def on_host() -> DeviceSearch:
    """Return the search for layers of n337 on a laptop."""
    search = znni.inference.planning.search(
        NETWORKS / "n337.yaml", (512, 512, 512), machine=MACHINES / "laptop.yaml", costs="built-in"
    )
    return search._searches["cpu"]


def test_prices_worked_out_step_by_step_are_those_of_all_at_once() -> None:
    step = bare_step(HIDDEN, Shape5(8, 80, 42, 50, 66), Shape5(8, 80, 40, 48, 64))
    key = HIDDEN, step.shape_in, step.shape_out
    everything = on_host().among(on_host()._primitives)._options.prices.offers(*key)
    call = on_host()._options.prices.call(*key)
    arrays, priced = step.shape_in.nbytes + step.shape_out.nbytes, []
    for room in (10**12, 2 * arrays, 0):
        fits = [it for it in everything if arrays + it.memory_bytes <= room]
        expected = min((it.seconds for it in fits), default=inf)
        while call.fastest(room, arrays, beside=True) > call.least_waiting:
            call.price_next()
        assert call.fastest(room, arrays, beside=True) == expected
        priced.append(len(call.offers))
    assert priced[0] < len(everything) == priced[-1]


@pytest.mark.parametrize("window", [Vec3(2, 2, 2), Vec3(3, 1, 2)])
@pytest.mark.parametrize("stride", [Vec3(1, 1, 1), Vec3(2, 1, 2)])
@pytest.mark.parametrize("reduce", ["max", "average"])
def test_samples_have_poolings_whose_windows_overlap(
    window: Vec3, stride: Vec3, reduce: Literal["max", "average"]
) -> None:
    """A layer without a primitive for any sample has no plan."""
    pool = Pool("pool", window, reduce, stride)
    primitives = catalogue(machine(10**9), "cpu").values()
    assert any(
        primitive.out_shape(pool, step.shape_in) == step.shape_out
        for primitive in primitives
        for step in sample_steps(pool, 4, plain=True)
    )


def test_a_primitive_for_shapes_beside_the_sample_is_tried() -> None:
    """It is the fastest for 22 voxels per axis, which no sampled shape has."""

    def for_22(layer: Operation, shape: Shape5) -> Shape5 | None:
        out = convolved(layer, shape)
        return out if out and out.size == Vec3(22, 22, 22) else None

    special = fake_catalogue(Fake("special", for_22, flops=1e-3))
    network = Network.chain("one", 1, (CONV,))
    found = Search(
        network, Vec3(22, 22, 22), machine(10**9), fake_catalogue() | special, NO_OVERHEAD
    )
    assert str(found.fastest()[0].steps[0].primitive) == "special"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "overhead", [NO_OVERHEAD, SLOW_TO_START, COLD, replace(SLOW_TO_START, followed=True)]
)
def test_limits_of_layers_count_all_windows_of_a_block(
    overhead: Overhead, device: DeviceKind
) -> None:
    whole = Vec3(40, 40, 64)
    one = Network.chain("windows", 1, (Conv("conv", 1, 1, Vec3.of(1), "relu"),))
    network = over(with_window(one, Window(Vec3.of(8)).over(whole)), Vec3.of(8))
    there = replace(machine(10**9), gpus=(gpu(10**9),))
    search = Search(network, whole, there, CHOICES, overhead)
    cut_point = CutPoint(1 if device == "cpu" else 0)
    assert cut_point in search.cut_points
    for patch in search.patches():
        candidate = search.patch_candidate(patch)
        job = candidate.job_time(cut_point, device, candidate.least_loads(cut_point))
        nothing = job.seconds(Load(0.0, 0, 0))
        within = job.layers_within(nothing + 10.0)
        assert job.seconds(Load(within, 0, 0)) == pytest.approx(nothing + 10.0)
        with_bytes = Load(within - 1000 * job.byte_seconds, 1000, 0)
        assert job.seconds(with_bytes) >= nothing + 10.0 - 1e-9
        assert (job.byte_seconds > 0) == (device == "cpu" and overhead is not NO_OVERHEAD)


@pytest.mark.parametrize("followed", [False, True])
def test_quick_bounds_are_no_larger_than_bounds_if_windows_reach_beyond_blocks(
    followed: bool,
) -> None:
    """A block much smaller than a window's step computes less than a window on average."""
    overhead = Overhead(0, (WriteModel(2e-5), LayersModel()), followed=followed)
    whole = Vec3(64, 64, 100)
    one = Network.chain("windows", 1, (Conv("conv", 1, 96, Vec3.of(1), "relu"),))
    network = over(with_window(one, Window(Vec3.of(64), 0.8).over(whole)), Vec3.of(64))
    search = Search(network, whole, machine(10**10), CHOICES, overhead)
    patches = list(search.patches())
    assert any(search.patch_candidate(patch)._counts.idle for patch in patches)
    for patch, quick in zip(patches, quick_bounds(search, patches), strict=True):
        assert quick <= bound_of_patch(search, patch)


@pytest.mark.slow_cases
@pytest.mark.parametrize("labels", [0, 1])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("device", ["cpu", "gpu", "cpu+gpu"])
def test_quick_bounds_count_all_that_bounds_count(
    device: DeviceChoice, workers: int, labels: int
) -> None:
    """Both count reading, writing, transfer, what a job takes once, and cold memory of blocks."""
    stages = (
        ReadModel(1e-5, 9e-4, 3e-6, 1e-4), ShareModel(), UploadModel(6e-6, 7e-6),
        LayersModel(5e-6), BlendModel(5e-6), DownloadModel(8e-6), LabelModel(), ConvertModel(7e-6),
        WriteModel(2e-5, 7e-4, 4e-6, 2e-4),
    )  # fmt: skip
    around = SecondsAround(start=0.5, finishing=0.25)
    once = SecondsOnce(building=0.1, warming=0.2, cuda=0.3, cold=1e-6, around=around)
    chunks = InputChunks("hdf5", "gzip", Vec3(8, 8, 64), Vec3(40, 80, 160))
    stored = Stored(label_maps=labels, chunk_files=True, input_chunks=chunks)
    overhead = Overhead(0, stages, once, workers=workers, warm=1000.0, stored=stored)
    gpus = tuple(replace(gpu(10**10), link=1e9) for _ in range(workers))
    search = Search(
        NETWORK,
        Vec3(24, 48, 96),
        replace(machine(10**10), gpus=gpus, used_gpus=workers),
        CHOICES | fake_gpu_catalogue(),
        overhead,
        device=device,
    )
    patches = list(search.patches())
    assert len(patches) > 20
    for patch, quick in zip(patches, quick_bounds(search, patches), strict=True):
        assert quick == pytest.approx(bound_of_patch(search, patch), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["titanx-e7", "h200-16-cores"])
def test_what_computes_several_items_on_a_gpu_for_the_host_computes_one(name: str) -> None:
    """So primitives are asked for single items only, to learn which bound the host's pieces."""
    there = znni.inference.planning.machine_for(MACHINES / f"{name}.yaml", None, None, None, "auto")
    using = [it for it in catalogue(there).values() if isinstance(it, UsesGpu)]
    for operation, features in ((FIRST, 1), (HIDDEN, 80), (Pool("pool", Vec3(2, 2, 2)), 80)):
        steps = list(sample_steps(operation, features))
        alone = [step for step in steps if step.shape_in.n == 1]
        for one in using:
            applies = [one.out_shape(it.operation, it.shape_in) is not None for it in alone]
            for step in steps if not any(applies) else ():
                assert one.out_shape(step.operation, step.shape_in) is None


@pytest.mark.slow
@pytest.mark.parametrize("net", ["n337", "cells-unet"])
def test_bounds_of_pieces_on_a_gpu_are_those_of_a_search_of_their_own(net: str) -> None:
    search = znni.search(
        NETWORKS / f"{net}.yaml", (512, 512, 512), machine=MACHINES / "h200-16-cores.yaml",
        costs="built-in",
    )  # fmt: skip
    bases = computing_pieces(search.network, on_device(search.catalogue, "cpu").values())
    assert 5 < len(bases) < len(on_device(search.catalogue, "gpu"))
    apart = DeviceSearch(search.network, bases, BUILT_IN, "none").bounds
    voxels = {name: np.array([1e6]) for name in ("input", *search.network.operations)}
    shared = search._bounds_of_gpu_pieces.of_layers(voxels)
    for layer, least in apart.of_layers(voxels).items():
        assert shared[layer] <= least  # a bound on a primitive may stand for it
        assert shared[layer] >= 0.8 * least  # copies take no time


def test_a_gpu_returns_labels_means_or_values_as_stored() -> None:
    layer = Conv("conv", 1, 3, Vec3.of(1), "relu")
    whole, patch = Vec3(40, 40, 64), Vec3(8, 8, 16)
    network = Network.chain("plain", 1, (layer,))
    windows = over(with_window(network, Window(Vec3.of(8)).over(whole)), Vec3.of(8))
    overhead = Overhead(0, (DownloadModel(1.0),), stored=Stored("float16"))
    labelling = replace(overhead, stored=Stored("float16", label_maps=1))
    several = replace(labelling, workers=2)
    nothing: dict[DeviceKind, Load] = {"gpu": Load(0.0, 0, 0)}
    for each, values, means in (
        (overhead, 2 * 3, 4 * 3),
        (labelling, 1, 1),
        (several, 1, 1),
    ):
        dense = time_of(each, network, patch, nothing).patch
        assert dense.transfer == values * patch.volume
        blended = time_of(each, windows, patch, nothing).patch
        assert (blended.transfer, blended.host_layers) == (0, means * patch.volume)
