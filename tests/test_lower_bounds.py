"""The bounds by which patches are ruled out: no plan is faster."""

from __future__ import annotations

from fakes import Fake, fake_catalogue, machine
from planner_cases import CONV, CONVOLUTIONS, NETWORK, NO_OVERHEAD

from planner.costs import BUILT_IN
from planner.exhaustive import Search
from znni.cost import Cost, Memory
from znni.network import Network, Operation
from znni.primitive import convolved, convolved_and_pooled
from znni.shapes import Shape5, Vec3


class Tiled(Fake):
    """Computes whole tiles of 22 voxels an axis only."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        out = convolved(layer, shape)
        assert out is not None
        computed = out.n * out.f * (out.size.ceil_div(22) * 22).volume
        memory = Memory.beside(shape.nbytes + out.nbytes, workspace=0)
        return Cost(float(computed), 0.0, memory, 1.0)


def test_no_shape_is_faster_per_voxel_than_the_bound() -> None:
    """Tiles of 22 outputs, as in overlap-save, which few extents are a multiple of."""
    by_tiles = Tiled("tiled", convolved, flops=1.0)
    network = Network("one", 1, (CONV,))
    for extent in (22, 44, 66, 220):
        plan = Search(
            network, Vec3.of(extent), machine(10**9), fake_catalogue(by_tiles), NO_OVERHEAD
        ).fastest()[0]
        output, tiled = Vec3.of(extent), {"tiled": by_tiles}
        search = Search(network, output, machine(10**9), tiled, NO_OVERHEAD, BUILT_IN, "none")
        assert search.lower_bound(plan.patch) <= plan.seconds


def test_no_plan_is_faster_than_the_bound_with_fused_steps() -> None:
    """Where all is fused, where nothing is, and where one layer's bound is from each."""
    for flops in (2.0, 60.0, 90.0, 400.0):
        fused = Fake("fused", convolved_and_pooled, flops=flops)
        catalogue = fake_catalogue(*CONVOLUTIONS, fused)
        for memory in (60_000, 200_000, 10**9):
            for output in (Vec3(12, 20, 24), Vec3(40, 40, 40)):
                plan = Search(NETWORK, output, machine(memory), catalogue, NO_OVERHEAD).fastest()[0]
                search = Search(
                    NETWORK, output, machine(memory), catalogue, NO_OVERHEAD, BUILT_IN, "none"
                )
                assert search.lower_bound(plan.patch) <= plan.seconds
