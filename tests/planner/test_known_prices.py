"""Known prices rule others out, and bounds of layers and copies rule patches out."""

from __future__ import annotations

import random
from functools import cache
from math import inf, log2

import pytest
from fakes import Fake
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_networks import PackedGraph
from paths import MACHINES, NETWORKS
from planner_cases import bound_of_patch, bound_with_prices

import planner.priced_call
import planner.prices
import znni.inference.planning
from planner.bare_steps import bare_step
from planner.choices import least_peak
from planner.cost_model import BUILT_IN, CostModel, Factor, Factors
from planner.device_search import DeviceSearch
from planner.memory_bounds import least_bytes_of_arrays
from planner.partition import CutPoint
from planner.patch_candidate import PatchCandidate
from planner.patch_order import _voxels
from planner.prices import Prices
from planner.search import Search
from znni.core.option_types import Accuracy
from znni.core.processors import DeviceKind
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine_choice import machine_for
from znni.network.geometry import over, with_window
from znni.network.layers import Concat, Conv, Operation, Pool, PooledConv
from znni.network.network import Network
from znni.network.window import Window
from znni.plans.cost import Cost
from znni.plans.nominal_time import nominal_time
from znni.plans.plan import Plan
from znni.plans.primitive import Primitive, TakesTimePerItem, convolved
from znni.primitives.catalogue import catalogue

CONVOLUTIONS = [
    Conv("first", 1, 16, Vec3(4, 4, 4), "relu"),
    Conv("hidden", 24, 32, Vec3(3, 3, 3), "relu"),
    Conv("wide", 80, 80, Vec3(5, 5, 5), "relu"),
    Conv("last", 80, 3, Vec3(7, 7, 7), "softmax"),
]
TWO_TAPS = Conv("two", 1, 80, Vec3(2, 2, 2), "relu")
POOLED = PooledConv(TWO_TAPS, Pool("pool", Vec3(2, 2, 2)))
sizes = st.builds(Vec3, *3 * [st.one_of(st.integers(1, 40), st.integers(30, 400))])


@cache
def primitives(name: str, device: DeviceKind) -> tuple[Primitive, ...]:
    """Return the primitives of a machine's host or GPU."""
    machine = machine_for(MACHINES / f"{name}.yaml", None, None, None, device)
    return tuple(catalogue(machine, device).values())


@settings(max_examples=30)
@given(
    conv=st.sampled_from(CONVOLUTIONS),
    size=sizes,
    fewer=st.sampled_from([1, 2, 3, 8, 16, 60]),
    more=st.sampled_from([0, 1, 5, 11, 64, 300]),
    there=st.sampled_from(
        [("laptop", "cpu"), ("e7", "cpu"), ("h200-node", "gpu"), ("rtx4090", "gpu")]
    ),
)
def test_several_calls_take_no_less_time_than_one_for_all_their_items(
    conv: Conv, size: Vec3, fewer: int, more: int, there: tuple[str, DeviceKind]
) -> None:
    found = {it.name: it for it in primitives(*there)}
    counted = 0
    for primitive in found.values():
        some, all_ = (
            Shape5.of(items, conv.in_features, size + conv.kernel - 1)
            for items in (fewer, fewer + more)
        )
        if isinstance(primitive, TakesTimePerItem) and primitive.out_shape(conv, all_):
            faster = found[primitive.bounded_by]
            assert primitive.out_shape(conv, some)
            together = nominal_time(faster, faster.cost(conv, all_))
            alone = nominal_time(primitive, primitive.cost(conv, some))
            calls = -(-(fewer + more) // fewer)  # they compute as many items, if not more
            assert together <= calls * alone * (1 + 1e-9)
            counted += 1
    assert counted


def test_searches_with_the_same_primitives_share_their_samples() -> None:
    class Counting(Fake):
        """A primitive that counts how often its cost was asked for."""

        costs = 0

        def cost(self, layer: Operation, shape: Shape5) -> Cost:
            Counting.costs += 1
            return super().cost(layer, shape)

    def least(primitive: Primitive) -> float:
        return Prices((primitive,), BUILT_IN, 4).least_seconds_per_voxel(conv, 1)

    conv = CONVOLUTIONS[0]
    first = least(Counting("counting", convolved))
    asked = Counting.costs
    assert least(Counting("counting", convolved)) == first
    assert Counting.costs == asked > 0
    assert least(Counting("counting", convolved, flops=2.0)) > first


class Uneven(CostModel):
    """A model by which primitives take half to twice as long as they say.

    Those that do not take their time per item take more or less for other numbers of items.
    """

    source = "noise"

    def factors(self, operation: Operation, shape: Shape5) -> Factors:
        several = round(log2(shape.n))

        def factor(primitive: Primitive) -> Factor:
            items = 0 if takes_time_per_item(primitive) else several
            return uneven_factor(f"{primitive.name} {type(operation).__name__} {shape.f} {items}")

        return factor


@cache  # Python 3.11 takes 0.1 ms to compare an object with a protocol
def takes_time_per_item(primitive: Primitive) -> bool:
    return isinstance(primitive, TakesTimePerItem)


@cache
def uneven_factor(seed: str) -> Factor:
    return Factor(2 ** random.Random(seed).uniform(-1, 1), 0.1)


UNEVEN = Uneven()


class FastAlone(CostModel):
    """A model by which one primitive takes a quarter of what it says.

    Args:
        name: the primitive.
        items: the binary logarithm of the items for which it does so; None: for all.
    """

    source = "one is fast"

    def __init__(self, name: str, items: int | None = None) -> None:
        self._name, self._items = name, items

    def factors(self, operation: Operation, shape: Shape5) -> Factors:  # noqa: ARG002
        fast = self._items in (None, round(log2(shape.n)))
        return lambda primitive: Factor(0.25 if fast and primitive.name == self._name else 1.0, 0.1)


@pytest.mark.parametrize(
    ("there", "name", "conv", "size"),
    [
        # It applies to no cube, because a cube of its tiles does not fit into a block of the GPU.
        (("rtx4090", "gpu"), "gpu_fft_tiled_32_float16", CONVOLUTIONS[2], Vec3(76, 40, 27)),
        # It is a fifth faster per voxel for thin outputs than for cubes.
        (("laptop", "cpu"), "fft_tiled_40", CONVOLUTIONS[1], Vec3(10, 60, 114)),
    ],
)
def test_no_layer_is_faster_than_its_bound_if_one_primitive_is_fast(
    there: tuple[str, DeviceKind], name: str, conv: Conv, size: Vec3
) -> None:
    found = Prices(primitives(*there), FastAlone(name), 8)
    shape = Shape5.of(8, conv.in_features, size + conv.kernel - 1)
    out = Shape5.of(8, conv.out_features, size)
    fastest = min(found.offers(conv, shape, out), key=lambda offer: offer.seconds)
    assert fastest.primitive.name == name
    least = found.least_seconds_per_voxel(conv, conv.in_features)
    assert 0 < least * out.n * size.volume <= fastest.seconds


@cache
def prices(name: str, device: DeviceKind) -> Prices:
    """Return prices on a machine's host or GPU, by the built-in model."""
    return Prices(primitives(name, device), BUILT_IN, 512)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    layer=st.sampled_from([*CONVOLUTIONS, TWO_TAPS, POOLED]),
    size=sizes,
    items=st.sampled_from([1, 2, 8, 60]),
    there=st.sampled_from(
        [("laptop", "cpu"), ("e7", "cpu"), ("h200-node", "gpu"), ("rtx4090", "gpu")]
    ),
)
@example(TWO_TAPS, Vec3(952, 209, 126), 60, ("laptop", "cpu"))  # fft_tiled_40 takes small tiles
@example(POOLED, Vec3(360, 470, 348), 1, ("laptop", "cpu"))  # fft_tiled_pooled_32 does
@example(CONVOLUTIONS[3], Vec3(48, 485, 1), 60, ("laptop", "cpu"))  # lowered_balanced_blocked
def test_no_primitive_is_faster_than_its_bound(
    layer: Conv | PooledConv, size: Vec3, items: int, there: tuple[str, DeviceKind]
) -> None:
    conv, window = (layer, 1) if isinstance(layer, Conv) else (layer.conv, layer.pool.window)
    items = items if isinstance(layer, Conv) else 1
    shape = Shape5.of(items, conv.in_features, size * window + conv.kernel - 1)
    out = Shape5.of(items, conv.out_features, size)
    known = prices(*there)
    call = known.call(layer, shape, out)
    for least, primitive in list(call._waiting):
        offer = known.priced(primitive, layer, shape, out)
        assert offer is None or least <= offer.seconds


class ByKind(CostModel):
    """A model by which one primitive takes as long as it says, and others take longer."""

    source = "others are slow"

    def __init__(self, name: str) -> None:
        self._name = name

    def factors(self, operation: Operation, shape: Shape5) -> Factors:  # noqa: ARG002
        return lambda primitive: Factor(1.0 if primitive.name == self._name else 1.6, 0.1)


def test_a_bound_is_near_if_one_kind_of_primitives_is_faster_than_it_says() -> None:
    """Winograd's nominal time is more than that of tiles in Fourier space."""
    conv, size = CONVOLUTIONS[1], Vec3(192, 192, 192)
    found = Prices(primitives("laptop", "cpu"), ByKind("winograd"), 8)
    shape = Shape5.of(8, conv.in_features, size + conv.kernel - 1)
    out = Shape5.of(8, conv.out_features, size)
    fastest = min(found.offers(conv, shape, out), key=lambda offer: offer.seconds)
    assert fastest.primitive.name == "winograd"
    least = found.least_seconds_per_voxel(conv, conv.in_features) * out.n * size.volume
    assert 0.9 * fastest.seconds < least <= fastest.seconds


def test_a_layer_of_one_item_is_not_bounded_by_factors_for_several() -> None:
    pool = Pool("pool", Vec3(2, 2, 2))
    model = FastAlone("max_pooling_fragments", items=3)
    found = Prices(primitives("laptop", "cpu"), model, 64)
    one, several = (found.least_seconds_per_voxel(pool, 16, 8, None, it) for it in (1, 8))
    assert one == 4 * several


class FewItems(Fake):
    """A primitive that computes two items or fewer."""

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        return super().out_shape(layer, shape) if shape.n <= 2 else None

    @property
    def bounded_by(self) -> str:
        return self.name


def test_a_primitive_for_fewer_items_bounds_all_items_in_pieces() -> None:
    conv = CONVOLUTIONS[1]
    fast, slow = FewItems("few", convolved), Fake("slow", convolved, flops=9.0)
    found = Prices((fast, slow), BUILT_IN, 8)
    shape = Shape5.of(8, conv.in_features, Vec3.of(66))
    out = Shape5.of(8, conv.out_features, Vec3.of(64))
    two = found.priced(fast, conv, shape._replace(n=2), out._replace(n=2))
    assert two
    assert 0 < found.least_seconds(conv, shape, out, inf, [1, 2, 4]) <= 4 * two.seconds


def test_bounds_hold_for_numbers_of_items_that_are_not_sampled() -> None:
    model = FastAlone("concatenation", items=5)
    found, join = Prices(primitives("laptop", "cpu"), model, 27), Concat("join")
    shape = Shape5.of(27, 16, Vec3(64, 64, 64))
    (offer,) = found.offers(join, shape, shape)
    least = found.least_seconds_per_voxel(join, 16)
    assert 0 < least * shape.n * shape.size.volume <= offer.seconds


def test_bounds_hold_for_several_windows_at_once() -> None:
    conv, whole = Conv("conv", 32, 32, Vec3.of(1), "relu"), Vec3.of(64)
    one = Network.chain("windows", conv.in_features, (conv,))
    network = over(with_window(one, Window(Vec3.of(32)).over(whole)), whole)
    (primitive,) = (it for it in primitives("h200-node", "gpu") if it.name == "gpu_cudnn_float32")
    search = DeviceSearch(network, [primitive], FastAlone(primitive.name, items=4), "none")
    shape = Shape5.of(16, conv.in_features, Vec3.of(32))
    step = bare_step(conv, shape, shape)
    (option,) = search._options.whole(step)
    assert 0 < search.bounds.of_step(step) <= option.seconds


@cache
def on_host(net: str, model: CostModel = BUILT_IN) -> DeviceSearch:
    """Return the search for layers of a network on a laptop."""
    search = znni.inference.planning.search(
        NETWORKS / f"{net}.yaml",
        (512, 512, 512),
        machine=MACHINES / "laptop.yaml",
        costs="built-in",
    )
    found = search._searches["cpu"]
    return DeviceSearch(found._network, found._primitives, model, "power-of-two")


@pytest.mark.slow
@settings(max_examples=30)
@given(
    net=st.sampled_from(["n337", "n926", "boundaries"]),
    index=st.integers(0, 4),
    items=st.sampled_from([1, 2, 8, 27, 36, 64]),
    size=sizes,
    model=st.sampled_from([BUILT_IN, UNEVEN]),
)
def test_no_layer_is_faster_than_its_bound_whole_or_in_pieces(
    net: str, index: int, items: int, size: Vec3, model: CostModel
) -> None:
    search = on_host(net, model)
    conv = search._network.convolutions[index]
    shape = Shape5.of(items, conv.in_features, size + conv.kernel - 1)
    out = Shape5.of(items, conv.out_features, size)
    least = search._options.least_seconds(conv, shape, out, inf)
    for option in search._options.relaxed(bare_step(conv, shape, out)):
        assert max(least, search.bounds.of_step(bare_step(conv, shape, out))) <= option.seconds


def test_fewer_items_may_be_faster_each_if_they_do_not_divide_all() -> None:
    """Batches of tiles are rounded up: of 27 fragments, 16 may be faster each."""
    search = on_host("n926").among(on_host("n926")._primitives)
    conv, known = search._network.convolutions[2], search._options.prices
    size = Vec3(20, 20, 20)
    for items in (27, 16):  # 27 are priced first, and bound 16
        shape = Shape5.of(items, conv.in_features, size + conv.kernel - 1)
        out = Shape5.of(items, conv.out_features, size)
        call = known.call(conv, shape, out)
        for _, primitive in list(call._waiting):
            offer = known.priced(primitive, conv, shape, out)
            assert offer is None or call._least(primitive) <= offer.seconds
        call.offers_within(inf)


def test_few_primitives_are_priced_for_a_bound() -> None:
    search = on_host("n926").among(on_host("n926")._primitives)
    conv = search._network.convolutions[2]
    before = len(search)
    shape = Shape5.of(8, conv.in_features, Vec3(70, 80, 90))
    out = Shape5.of(8, 80, shape.size - conv.kernel + 1)
    search._options.least_seconds(conv, shape, out, inf)
    assert 0 < len(search) - before <= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "ram"),
    [
        ("n337", "2GiB"),
        ("boundaries", "2GiB"),
        ("boundaries", "704MiB"),  # all items of a convolution do not fit at once
    ],
)
def test_bounds_by_uneven_factors_rule_out_no_faster_plan(
    net: str, ram: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fastest() -> tuple[float, int]:
        search = znni.inference.planning.search(
            NETWORKS / f"{net}.yaml", (120, 120, 120), machine=MACHINES / "laptop.yaml",
            device="cpu", ram=ram, costs="built-in",
        )  # fmt: skip
        search = Search(
            search.given, search.output, search.machine, search.catalogue, search.overhead, UNEVEN
        )
        return search.fastest()[0].seconds, search.calls

    seconds, calls = fastest()
    monkeypatch.setattr(planner.priced_call, "FASTEST_SLACK", 0.0)
    monkeypatch.setattr(planner.priced_call, "BOUND_SLACK", 0.0)
    monkeypatch.setattr(planner.prices, "ROUNDED", 0.0)
    without_bounds, all_calls = fastest()
    assert seconds == without_bounds
    assert calls < 0.3 * all_calls


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", ["float32", "tf32"])
@pytest.mark.parametrize("seed", range(6))
def test_no_block_takes_less_memory_than_the_bound(seed: int, accuracy: Accuracy) -> None:
    """Nor do blocks whose values are packed, and whose sums are added as convolutions store."""
    drawn = random.Random(seed)
    search = znni.inference.planning.search(
        PackedGraph(drawn).network(), (96, 96, 96), machine=MACHINES / "h200-node.yaml",
        device="gpu", border="same", accuracy=accuracy, costs="built-in",
    )  # fmt: skip
    gpu, bounds = search._searches["gpu"], list[float]()
    for _ in range(3):
        patch = search.network.granularity * Vec3(*(drawn.randint(1, 12) for _ in range(3)))
        voxels = _voxels(search.network, [patch])
        (least,) = least_bytes_of_arrays(search.network, voxels, gpu.value_bytes)
        (partition,) = search.patch_candidate(patch).cut(CutPoint(0)).partitions
        for _, bare, _ in gpu._segmentations(partition, lambda _: inf):
            peak = least_peak(bare)
            assert least <= peak
            bounds.append(least / peak)
    assert max(bounds) > 0.25


@pytest.mark.slow
def test_a_small_gpu_is_planned_for_at_once() -> None:
    """Few blocks fit, and the others are ruled out by their arrays, before anything is priced."""
    search = znni.inference.planning.search(
        NETWORKS / "cells-unet.yaml", (2048, 2048, 2048), machine=MACHINES / "rtx4090.yaml",
        device="gpu", gpu_memory=2 * 2**30, costs="built-in",
    )  # fmt: skip
    plan = search.fastest()[0]
    assert plan.gpu_memory
    assert plan.gpu_memory.total > 1.8 * 2**30
    assert search.calls < 400


def test_outputs_written_as_views_take_no_memory_apart() -> None:
    """The memory that a plan takes is enough for a search to find it."""
    search = znni.inference.planning.search(
        NETWORKS / "cells-unet.yaml", (512, 512, 512), machine=MACHINES / "rtx4090.yaml",
        device="gpu", costs="built-in",
    )  # fmt: skip
    plan = search.fastest_for(Vec3(128, 128, 256))
    assert plan
    assert plan.gpu_memory
    again = search.within(plan.gpu_memory.total, "gpu").fastest_for(plan.patch)
    assert again
    assert again.seconds == plan.seconds


def test_a_cut_point_of_a_patch_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[tuple[Vec3, CutPoint]] = []
    fastest_with = Search._fastest_with

    def noted(
        self: Search, candidate: PatchCandidate, cut_point: CutPoint, limit: float
    ) -> Plan | None:
        searched.append((candidate.patch, cut_point))
        return fastest_with(self, candidate, cut_point, limit)

    monkeypatch.setattr(Search, "_fastest_with", noted)
    search = znni.inference.planning.search(
        NETWORKS / "n337.yaml", (512, 512, 512), machine=MACHINES / "titanx-e7.yaml",
        costs="built-in",
    )  # fmt: skip
    search.fastest()
    assert len(searched) == len(set(searched)) > 1


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("net", "machine", "device", "patch"),
    [
        ("n337", "h200-16-cores", "gpu", Vec3(400, 400, 496)),
        ("n337", "laptop", "cpu", Vec3(216, 432, 432)),  # few layers' items fit all at once
        ("cells-unet", "laptop", "cpu", Vec3(64, 128, 128)),
    ],
)
def test_prices_of_a_patch_raise_its_bound(
    net: str, machine: str, device: DeviceKind, patch: Vec3
) -> None:
    search = znni.inference.planning.search(
        NETWORKS / f"{net}.yaml", (512, 512, 512), machine=MACHINES / f"{machine}.yaml",
        device=device, costs="built-in",
    )  # fmt: skip
    plan = search.fastest_for(patch)
    assert plan
    bound = bound_with_prices(search, patch)
    assert 1.005 * bound_of_patch(search, patch) < bound <= plan.seconds
