"""Search that is small enough to try every plan, and whose plans differ under each limit."""

from __future__ import annotations

from fake_stages import overhead
from fakes import FUSED, Fake, fake_catalogue, machine

from planner.exhaustive import Search
from znni.core.shapes import Vec3
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.plans.primitive import convolved

NETWORK = Network.chain(
    "net",
    1,
    (
        Conv("conv1", 1, 2, Vec3(3, 3, 3), "relu"),
        Pool("pool1", Vec3(2, 2, 2)),
        Conv("conv2", 2, 4, Vec3(3, 3, 3), "relu"),
        Conv("conv3", 4, 1, Vec3(2, 2, 2), "relu"),
    ),
)
OUTPUT = Vec3(40, 40, 48)
OVERHEAD = overhead(1000, 1, 2)
CATALOGUE = fake_catalogue(
    Fake("direct", convolved, flops=80.0),
    Fake("fft_tiled", convolved, flops=20.0, workspace=50_000),
    Fake("lowered_whole", convolved, flops=40.0, workspace=9_000, resident=3_000),
    FUSED,
)
LIMIT = 2_000_000


def small_search(limit: int = LIMIT, output: Vec3 = OUTPUT) -> Search:
    return Search(NETWORK, output, machine(limit), CATALOGUE, OVERHEAD)
