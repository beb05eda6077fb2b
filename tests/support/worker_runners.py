"""Runners for tests of workers: they sum over the field of view, and can fail in many ways."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from waiting import until

from znni.core.errors import RunFailed
from znni.core.shapes import Axis, Vec3
from znni.engine.block import Block
from znni.engine.column import Column
from znni.engine.labels import Labels
from znni.engine.stopwatch import Stopwatch
from znni.network.layers import Conv
from znni.network.network import Network
from znni.plans.totals import PlanMemory

VIEW = Vec3(3, 2, 4)
NETWORK = Network.chain("sums", 1, (Conv("conv", 1, 2, VIEW, "identity"),))
NO_MEMORY = PlanMemory(process=0, weights=0, resident=0, working=0, blocks=0)


@dataclass(frozen=True)
class SumsPlan:
    """The part of a plan that workers need."""

    patch: Vec3
    network: Network = NETWORK
    memory: PlanMemory = NO_MEMORY
    patches: int = 125
    input_itemsize: int = 4
    is_swept: bool = False

    @property
    def takes_stored(self) -> bool:
        return self.input_itemsize < 4

    @property
    def input_patch(self) -> Vec3:
        return self.patch + VIEW - 1


@dataclass
class Sums:
    """Computes the sum over the field of view, and its negative, in two stages.

    Attributes:
        plan: patches to compute.
        fate: event at the fifth patch, by which time at least one slot was used again. "fails late"
            fails in the second stage, at any patch.
    """

    plan: SumsPlan
    fate: str = ""
    begun: int = 0

    def stages(self, stopwatch: Stopwatch, _labels: Labels | None = None) -> list[Any]:
        def total(block: Block) -> NDArray[Any]:
            given = scaled(block) if self.plan.takes_stored else block.values
            assert given.shape == (1, *self.plan.input_patch)
            with stopwatch.during("host_layers"):
                self.begun += 1
                if self.begun == 5:
                    meet(self.fate)
                return sums(given[0])

        def both(block: Block) -> NDArray[Any]:
            whole = block.values
            if self.fate == "fails late":
                time.sleep(0.2)
                raise RunFailed("the device failed late; run again")
            return np.stack([whole, -whole])

        return [total, both]


@dataclass
class GoesOn:
    """Gives 1 for a block that goes on from the one before along an axis, and 0 for another."""

    plan: SumsPlan
    axis: Axis

    def stages(self, _stopwatch: Stopwatch, _labels: Labels | None = None) -> list[Any]:
        column = Column(self.axis)

        def follows(block: Block) -> NDArray[Any]:
            goes_on = column.follows(block.tile.computed)
            column.done(block.tile.computed)
            time.sleep(0.002)
            return np.full((2, *self.plan.patch), goes_on, np.float32)

        return [follows]


def scaled(block: Block) -> NDArray[np.float32]:
    """Return what the network sees in a block of stored values, which takes no bytes more."""
    stored, scaling = block.values, block.scaling
    assert scaling is not None
    assert stored.dtype == np.uint8
    found = np.zeros(stored.shape, np.float32)
    found[:, *scaling.known.slices] = stored[:, *scaling.known.slices]
    return found * np.float32(scaling.scaling.scale)


class LateMean(NamedTuple):
    """A mean that takes a while to be brought from its place."""

    place: NDArray[Any]

    @classmethod
    def of(cls, block: Block) -> LateMean:
        return cls(block.values)

    def maps(self) -> NDArray[Any]:
        time.sleep(0.03)
        return self.place.copy()

    def labels(self, labels: Labels) -> NDArray[Any]:
        time.sleep(0.03)
        found = np.empty(self.place.shape, labels.dtype)
        return np.greater(self.place, labels.threshold, out=found, casting="unsafe")


class TwoPlaces:
    """Gives blocks as they are, from two places in turn, as a GPU gives means of windows.

    Attributes:
        network: has windows of the extents of a block.
        plan: itself.
    """

    patch = Vec3(4, 4, 4)
    patches = 16
    memory = NO_MEMORY
    input_itemsize = 4
    takes_stored = False
    is_swept = False
    machine = SimpleNamespace(host=SimpleNamespace(threads=1))

    def __init__(self, network: Network) -> None:
        self.network = network
        self.plan: Any = self

    def stages(self, _stopwatch: Stopwatch, _labels: Labels | None = None) -> list[Any]:
        places = cycle([np.zeros((1, *self.patch), np.float32) for _ in range(2)])

        def launch(block: Block) -> NDArray[Any]:
            place = next(places)
            place[...] = block.values
            return place

        return [launch, LateMean.of]


def sums(x: NDArray[Any]) -> NDArray[Any]:
    return sliding_window_view(x, VIEW).sum(axis=(3, 4, 5), dtype=np.float32)


def meet(fate: str) -> None:
    if fate == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fate == "killed by a real-time signal":
        os.kill(os.getpid(), signal.SIGRTMIN + 3)
    elif fate == "short of memory":
        raise MemoryError
    elif fate == "failed":
        raise RunFailed("the device failed; run again")
    elif fate == "odd":
        raise Odd(1, 2)
    elif fate == "ends":
        os._exit(3)
    elif fate == "slow":
        time.sleep(60)


class Odd(Exception):
    """Exception that cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def made_when(file: Path, plan: SumsPlan) -> Sums:
    """Return a runner as soon as a file exists."""
    until(file.exists)
    return Sums(plan)


def made_with(_weights: bytes, plan: SumsPlan) -> Sums:
    """Return a runner that needs weights."""
    return Sums(plan)


def not_made() -> Sums:
    raise RunFailed("no such device; give another")


def not_made_when(file: Path) -> Sums:
    """Fail to make a runner, some time after a file exists."""
    until(file.exists)
    time.sleep(0.1)
    return not_made()
