"""Common parts of the benchmarks' tests: ceilings, an effort and a network that take seconds."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace

import pytest

from bench.ceilings import Ceilings
from bench.rounds import Effort
from znni.core.shapes import Vec3
from znni.network.layers import Conv, Pool
from znni.network.network import Network

CEILINGS = Ceilings(threads=2, register_flops=2e11, sgemm_flops=1e11, copy_bandwidth=1e10)
QUICK = Effort(repeats=2, budget=5.0)
NETWORK = Network.chain(
    "tiny",
    1,
    (
        Conv("conv1", 1, 3, Vec3(2, 3, 2), "relu"),
        Pool("pool1", Vec3(2, 1, 2)),
        Conv("conv2", 3, 4, Vec3(3, 2, 2), "relu"),
        Pool("pool2", Vec3(2, 2, 1)),
        Conv("conv3", 4, 2, Vec3(1, 2, 2), "identity"),
    ),
)
PATCH = NETWORK.total_pooling * 2


def clock_of_ticks() -> SimpleNamespace:
    """Return a replacement for a module's ``time``; each reading is a second after the last."""
    return SimpleNamespace(perf_counter=count().__next__)


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
