"""Tests of inferers in threads of one process: correct, within their memory, and in turn."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Barrier, Lock
from typing import Any

import numpy as np
import pytest
from command_line import VOLUME, voxels
from fakes import Fake, fake_catalogue
from numpy.typing import NDArray
from random_networks import chain
from tiny_network import close, expected

import znni
from znni.core.shapes import Shape5
from znni.inference.session import Session
from znni.machine.arrays import peak_memory
from znni.machine.machine import Machine
from znni.network.layers import Operation
from znni.network.network import Network
from znni.network.weights import ConvWeights, Weights, weights_for
from znni.plans.primitive import Catalogue, Run, convolved
from znni.primitives.catalogue import catalogue

NETWORK = chain(("conv", 3), ("pool", 2), ("conv", 5), features=8)
POOLING = "max_pooling_fragments"
CALLS = 3
SLACK = 3 * 2**20  # one-time share of the allocator, the interpreter and huge pages


def volume(extent: int) -> NDArray[np.float32]:
    return np.random.default_rng(extent).random((extent, 70, 80), np.float32)


def few_real(machine: Machine, names: tuple[str, ...] = ("direct", "fft_tiled_12")) -> Catalogue:
    found = catalogue(machine)
    return {name: found[name] for name in (*names, POOLING)}


@pytest.mark.slow
@pytest.mark.parametrize("names", [("direct", "fft_tiled_12"), ("lowered_balanced",)])
def test_two_at_once_are_right_and_keep_to_the_memory_of_both(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.inference.planning.catalogue", partial(few_real, names=names))
    weights = znni.random_weights(NETWORK, 1)
    volumes = [volume(60), volume(64)]
    plan = znni.plan(NETWORK, volumes[0].shape, ram="1GiB", threads=2)

    def inferer() -> znni.Inferer:
        return znni.Inferer(NETWORK, weights, plan, ram="1GiB")

    alone = [inferer()(one) for one in volumes]
    together = Barrier(2, timeout=60)

    def results(one: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        own = inferer()
        together.wait()
        return [own(one) for _ in range(CALLS)]

    with peak_memory() as peak, ThreadPoolExecutor(2) as threads:
        found = list(threads.map(results, volumes))
    for made, wanted in zip(found, alone, strict=True):
        for one in made:
            np.testing.assert_array_equal(one, wanted)
    promised = 2 * (plan.memory.total - plan.memory.process)
    outputs = CALLS * sum(wanted.nbytes for wanted in alone)
    assert promised > 4 * SLACK
    assert peak.added <= promised + outputs + SLACK


def test_several_sizes_keep_to_the_memory_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.inference.planning.catalogue", few_real)
    weights = znni.random_weights(NETWORK, 1)
    volumes = [volume(extent) for extent in (60, 64)]
    plans = [znni.plan(NETWORK, one.shape, ram="1GiB", threads=1) for one in volumes]
    outputs = [4 * NETWORK.out_features * plan.output.volume for plan in plans]
    layers = [plan.memory.total - plan.memory.process for plan in plans]
    assert min(layers) > 4 * SLACK
    allowed = max(layers) + max(outputs)
    inferer = znni.Inferer(NETWORK, weights, ram=plans[0].memory.process + allowed, threads=1)
    first = [inferer(one) for one in volumes]  # the code is compiled now
    inferer._session.prepared.clear()
    with peak_memory() as peak:
        for one in volumes:
            inferer(one)
    assert peak.added <= allowed + SLACK
    for one, wanted in zip(volumes, first, strict=True):
        np.testing.assert_array_equal(inferer(one), wanted)


@dataclass(frozen=True)
class Slow(Fake):
    """Primitive that takes a while and records when it runs."""

    running: Any = None

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        run = super().build(layer, shape, weights)

        def slowly(x: Any) -> Any:
            assert self.running.acquire(blocking=False), "two runs at a time"
            time.sleep(0.01)
            y = run(x)
            self.running.release()
            return y

        return slowly


def test_calls_of_one_take_turns(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    slow = Slow("conv", convolved, running=Lock())
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: fake_catalogue(slow))
    inferer = znni.Inferer(network, weights, znni.plan(network, VOLUME))
    volumes = [voxels(), voxels((8, 20, 23)), voxels((9, 20, 23))]
    wanted = [expected(one) for one in volumes]
    with ThreadPoolExecutor(3) as threads:
        for found, right in zip(threads.map(inferer, volumes), wanted, strict=True):
            assert close(found, right)


def test_weights_are_not_those_that_another_thread_asks_for_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread asks for its weights while a session reads others."""
    own, other = znni.random_weights(NETWORK, 1), znni.random_weights(NETWORK, 2)
    session = Session()

    def meanwhile(network: Network, given: Any, seed: int | None) -> Weights:
        if given is own:
            session.weights_for(NETWORK, other, None)
        return weights_for(network, given, seed)

    monkeypatch.setattr("znni.inference.session.weights_for", meanwhile)
    assert session.weights_for(NETWORK, own, None).sha256 == own.sha256
