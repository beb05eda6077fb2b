"""Layers of the host's tensors on a GPU: what they promise, without one, and with one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import emulated_gpu, needs_emulation
from emulated_plans import MACHINE
from fakes import Fake, FakeOnGpu, fake_catalogue, gpu, machine
from gpu_layers import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_resources import resource_usage
from layers import inputs, random_case, seeds

from bench import reference
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_machine
from znni.machine.device_arena import DeviceArena
from znni.machine.machine import Machine
from znni.machine.nvrtc import compile_offline
from znni.network.layers import Activation, Conv, Pool
from znni.plans.composed import Piece
from znni.plans.composition import AtOnce, ShareBy
from znni.plans.primitive import UsesGpu, convolved, without_gpu
from znni.plans.side_by_side import SideBySide
from znni.plans.step_primitive import find_primitive
from znni.primitives.catalogue import catalogue
from znni.primitives.gpu.common.activation import EXPRESSIONS
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR
from znni.primitives.gpu.fft_tiled.primitive import GpuFftTiled
from znni.primitives.gpu.packed.primitive import primitives as packed_primitives
from znni.primitives.host_and_gpu.cuda_lanes import CudaLanes, adding_source
from znni.primitives.host_and_gpu.host_ram import BUDGETS, HostRam, build_parts, primitives
from znni.primitives.host_and_gpu.splits import splits
from znni.primitives.host_and_gpu.sub_layer_loop import compute_sub_layers
from znni.primitives.host_and_gpu.sub_layers import SubLayers

HOST = machine().host
GPU = replace(gpu(), link=50e9, flops=5e13, bandwidth=4e12)
HIDDEN = Conv("hidden", 80, 80, Vec3(5, 5, 5), "relu")
SHAPE = Shape5(8, 80, 104, 104, 104)
GIB = 2**30


def host_ram(gib: int = 4) -> HostRam:
    return HostRam(HOST, GPU, GpuFftTiled(GPU, BFLOAT16_PAIR, 16), gib)


@pytest.mark.parametrize("gib", BUDGETS)
def test_pieces_stay_within_the_budget(gib: int) -> None:
    memory = host_ram(gib).cost(HIDDEN, SHAPE).memory
    assert memory.gpu_working <= gib * GIB
    assert memory.working == SHAPE.nbytes + 4 * 8 * 80 * 100**3
    assert (memory.resident, memory.workspace) == (0, 0)
    base = GpuFftTiled(GPU, BFLOAT16_PAIR, 16).cost(HIDDEN, SHAPE._replace(n=1)).memory
    assert memory.gpu_resident >= base.resident / 2  # tiles of other extents in thinner slabs


def test_a_layer_takes_no_less_than_its_transfers() -> None:
    cost = host_ram().cost(HIDDEN, SHAPE)
    floor = max(SHAPE.nbytes, 4 * 8 * 80 * 100**3) / GPU.link
    assert cost.seconds is not None
    assert floor < cost.seconds < 1.25 * floor
    slow = HostRam(HOST, replace(GPU, link=5e9), GpuFftTiled(GPU, BFLOAT16_PAIR, 16), 4).cost(
        HIDDEN, SHAPE
    )
    assert slow.seconds == pytest.approx(10 * cost.seconds, rel=0.1)
    assert slow.memory == cost.memory  # which a plan promises wherever it was made


def test_declines_what_the_gpu_does_not_do() -> None:
    pool = Pool("pool", Vec3(2, 2, 2))
    assert host_ram().out_shape(pool, Shape5(1, 80, 9, 9, 9)) is None
    assert host_ram().out_shape(HIDDEN, Shape5(1, 80, 9, 9, 4)) is None
    with pytest.raises(ValueError, match="host_ram_4GiB_gpu_fft_tiled_16 does not apply"):
        host_ram().cost(pool, Shape5(1, 80, 9, 9, 9))
    huge = Shape5(1, 80, 2000, 2000, 2000)  # one plane of one map is 16 MB, five of 80 6.4 GB
    assert host_ram(4).out_shape(HIDDEN, huge) is not None
    assert HostRam(HOST, GPU, FakeOnGpu("much", convolved, workspace=2 * GIB), 1).out_shape(
        HIDDEN, SHAPE
    ) is None  # fmt: skip


def test_are_offered_beside_a_gpu() -> None:
    known = Machine(HOST, (GPU,))
    offered = catalogue(known)
    assert offered["host_ram_4GiB_gpu_fft_tiled_16"] == host_ram()
    assert not any(isinstance(p, UsesGpu) for p in without_gpu(offered).values())
    assert without_gpu(offered) == catalogue(Machine(HOST))


def test_primitives_of_packed_values_compute_no_pieces() -> None:
    gpu = replace(GPU, capability=90)
    plain = {"gpu_fft_tiled_16": GpuFftTiled(gpu, BFLOAT16_PAIR, 16)}
    packed = {it.name: it for it in packed_primitives(gpu)}
    assert packed
    assert primitives(HOST, gpu, plain | packed) == primitives(HOST, gpu, plain)
    assert len(primitives(HOST, gpu, plain)) == len(BUDGETS)


def in_both(items: int = 3) -> SideBySide:
    slow = Fake("slow", convolved, flops=100.0, resident=5, workspace=7)
    return SideBySide(Piece(1, items, slow), Piece(1, 8 - items, host_ram()))


def test_side_by_side_takes_the_memory_of_both_and_the_time_of_the_slower() -> None:
    cost = in_both().cost(HIDDEN, SHAPE)
    beside = host_ram().cost(HIDDEN, SHAPE._replace(n=5))
    assert cost.memory.working == SHAPE.nbytes + 4 * 8 * 80 * 100**3 + 7
    assert (cost.memory.resident, cost.memory.workspace) == (5, 7)
    assert cost.memory.gpu_working == beside.memory.gpu_working
    assert cost.memory.gpu_resident == beside.memory.gpu_resident
    assert cost.seconds == 3 * 80 * 100**3 * 100 / HOST.flops  # the slow one's
    narrow = Fake("slow", convolved, device=replace(HOST, bandwidth=1e9))
    crowded = SideBySide(Piece(1, 3, narrow), in_both().on_gpu).cost(HIDDEN, SHAPE)
    assert crowded.seconds == crowded.bytes_moved / 1e9  # of both, by the host's memory
    assert in_both(items=1).out_shape(HIDDEN, SHAPE._replace(n=7)) is None


def test_side_by_side_is_found_by_what_a_plan_notes() -> None:
    known = fake_catalogue(host_ram(), GpuFftTiled(GPU, BFLOAT16_PAIR, 16))
    using = "host_ram_4GiB_gpu_fft_tiled_16"
    both = find_primitive(known, AtOnce(ShareBy(3, "conv"), ShareBy(5, using)))
    assert both is not None
    assert both.name == f"3 conv beside 5 {using}"
    assert find_primitive(known, both.name) is None, "a name alone tells of no composition"
    for on_host, on_gpu in (
        (ShareBy(3, using), ShareBy(5, "conv")),
        (ShareBy(3, "conv"), ShareBy(5, "conv")),
        (ShareBy(3, "conv"), ShareBy(5, "gpu_fft_tiled_16")),
        (ShareBy(3, "conv"), ShareBy(0, using)),
        (ShareBy(3, "conv"), ShareBy(5, "")),
    ):
        assert find_primitive(known, AtOnce(on_host, on_gpu)) is None


def test_side_by_side_computes_each_item_once() -> None:
    """With the reference in place of both, which run at the same time."""
    layer, shape = Conv("layer", 2, 3, Vec3(2, 3, 2), "relu"), Shape5(4, 2, 5, 6, 7)
    first, second = Fake("first", convolved), Fake("second", convolved, workspace=64)
    case = random_case(layer, shape)
    both = SideBySide(Piece(1, 1, first), Piece(1, 3, second))
    expected = reference.convolution(case.x, layer, case.weights)
    np.testing.assert_allclose(case.run(both), expected, rtol=1e-5, atol=1e-5)


@needs_emulation
def test_a_gpu_computes_its_share_beside_the_host() -> None:
    known = catalogue(MACHINE)
    layer, shape = Conv("layer", 2, 3, Vec3(2, 3, 2), "relu"), Shape5(4, 2, 5, 6, 7)
    both = SideBySide(
        Piece(1, 1, known["direct"]), Piece(1, 3, known["host_ram_0.25GiB_gpu_direct"])
    )
    case = random_case(layer, shape)
    with emulated_gpu():
        on_gpu = DeviceArena(both.cost(layer, shape).memory.gpu_working)
        run = both.build(layer, shape, case.weights)
        with on_gpu.in_use():
            y = run(case.x)
        assert on_gpu.peak > 0
    expected = reference.convolution(case.x, layer, case.weights)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_an_error_beside_is_raised() -> None:
    class Broken(Fake):
        def _reference(self, *_: object) -> None:
            raise RuntimeError("broken beside")

    layer, shape = Conv("layer", 1, 1, Vec3(1, 1, 1), "relu"), Shape5(2, 1, 3, 3, 3)
    both = SideBySide(Piece(1, 1, Fake("good", convolved)), Piece(1, 1, Broken("bad", convolved)))
    with pytest.raises(RuntimeError, match="broken beside"):
        random_case(layer, shape).run(both)


@needs_compiler
@pytest.mark.parametrize("activation", sorted(EXPRESSIONS))
def test_adding_compiles(activation: Activation) -> None:
    usage = resource_usage(adding_source(activation))["add_partial"]
    assert usage.spills == 0
    assert compile_offline(adding_source(activation), "sm_75")


@pytest.mark.gpu
@settings(max_examples=25)
@given(data=st.data())
def test_every_division_is_the_reference_on_a_gpu(data: st.DataObject) -> None:
    """The tests of a primitive draw the divisions that it chooses; here are all."""
    base = catalogue(detect_machine())["gpu_direct"]
    maps = st.sampled_from([1, 3, 18, 35])
    activation = data.draw(st.sampled_from(sorted(EXPRESSIONS)))
    layer = Conv("layer", data.draw(maps), data.draw(maps), Vec3(2, 3, 2), activation)
    shape = Shape5(data.draw(st.sampled_from([1, 4])), layer.in_features, 9, 8, 7)
    case = random_case(layer, shape)._replace(x=data.draw(inputs)(shape, data.draw(seeds)))
    out = convolved(layer, shape)
    assert out is not None
    split = data.draw(st.sampled_from(list(splits(layer, shape, out))))
    parts = SubLayers(layer, shape, out, split)
    lanes = CudaLanes(activation)
    with lanes.computing:
        runs = build_parts(base, parts, case.weights)
    y = np.full(out, np.nan, np.float32)
    compute_sub_layers(lanes, parts, runs, case.x, y)
    lanes.wait()
    expected = reference.convolution(case.x, layer, case.weights)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
