"""Common parts of the benchmarks' tests: ceilings, an effort and a network that take seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import count
from operator import methodcaller
from types import SimpleNamespace
from typing import Any

import pytest

from bench.ceilings import Ceilings
from bench.child import Child, ChildFailed, outcome_of
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


class InProcess(Child):
    """A ``Child`` whose object is in this process: no interpreter starts, no library is loaded."""

    def __init__(
        self,
        make: Callable[..., Any],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,  # noqa: ARG002 - of no use here
    ) -> None:
        self._made = _told(outcome_of(make, *arguments))

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method, and return its result."""
        return _told(outcome_of(methodcaller(method, *arguments), self._made))

    def peak_memory(self) -> int:
        """Return the bytes of a small process: this one has done many other things."""
        return 1 << 30

    def close(self) -> None:
        """Do nothing."""


def _told(outcome: tuple[bool, Any]) -> Any:
    succeeded, value = outcome
    if not succeeded:
        raise ChildFailed(value)
    return value


def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put contestants into this process, instead of one of their own for each."""
    for module in ("network", "peers.best_patch", "peers.torch_layer", "scaling", "top_plans"):
        monkeypatch.setattr(f"bench.{module}.Child", InProcess)


def clock_of_ticks() -> SimpleNamespace:
    """Return a replacement for a module's ``time``; each reading is a second after the last."""
    return SimpleNamespace(perf_counter=count().__next__)


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
