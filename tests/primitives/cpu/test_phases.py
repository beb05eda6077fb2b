"""Phases: order, shares, and workers that start late, never start, or are interrupted."""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from znni.machine.arrays import empty_aligned
from znni.network.weights import Float32
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.phases import Phase, PhaseEmitter, PhaseKernel, run_phases
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter
from znni.primitives.cpu.common.workers import Workers, workers

FLOATS, INDICES, INDEX = Argument.FLOATS, Argument.INDICES, Argument.INDEX

MORE_THAN_CORES = (os.cpu_count() or 1) + 6
SHARES = 3000
PHASES = 6


@cache
def mirrored_sums() -> PhaseKernel:
    """Return a phase: stream ``target[i] = source[i] + source[last - i]``, and count shares."""
    emit = PhaseEmitter("mirrored_sums", source=FLOATS, target=FLOATS, last=INDEX)
    share, scratch = emit["share"], emit["scratch"]
    places = (emit.times(i, LANES) for i in (share, emit.minus(emit["last"], share)))
    terms = (emit.load(emit.at(emit["source"], place)) for place in places)
    emit.stream(emit.add(*terms), emit.at(emit["target"], emit.times(share, LANES)))
    emit.store(emit.add(emit.load(scratch), emit.constant(1.0)), scratch)
    return emit.compile_phase()


@cache
def callbacks() -> PhaseKernel:
    """Return a phase that calls ``function(share)``."""
    emit = PhaseEmitter("callbacks", function=INDEX)
    emit.call(emit["function"], [emit["share"]])
    return emit.compile_phase()


class Chain:
    """A chain of phases; each reads the results of all shares of the previous one."""

    def __init__(self, threads: int, shares: int = SHARES) -> None:
        self.rows = empty_aligned((PHASES + 1, shares, LANES), np.float32)
        self.rows[0] = np.arange(shares * LANES).reshape(shares, LANES) % 251
        self.rows[1:] = np.nan
        self.scratch = empty_aligned((threads, LANES), np.float32)
        self.scratch[:] = 0
        addresses = [row.ctypes.data for row in self.rows]
        self.phases = [
            mirrored_sums().phase(shares, source=source, target=target, last=shares - 1)
            for source, target in pairwise(addresses)
        ]

    def run(self, pool: Workers) -> None:
        run_phases(self.phases, addresses_of(self.scratch), pool)

    def check(self) -> None:
        expected = self.rows[0]
        for row in self.rows[1:]:
            expected = expected + expected[::-1]
            np.testing.assert_array_equal(row, expected)
        done = self.scratch.sum(axis=0)
        np.testing.assert_array_equal(done, len(self.phases) * len(expected))


def addresses_of(scratch: Float32) -> list[int]:
    return [part.ctypes.data for part in scratch]


class Starting(Workers):
    """Workers that start after some seconds, or never."""

    def __init__(self, *delays: float | None) -> None:
        super().__init__(len(delays))
        self.delays = delays

    def run(self, kernel: Kernel, arguments: Sequence[Sequence[int]], most: int) -> None:
        def start(delay: float, given: Sequence[int]) -> None:
            time.sleep(delay)
            kernel(*given)

        assert most > 0
        threads = [
            threading.Thread(target=start, args=(delay, given))
            for delay, given in zip(self.delays, arguments, strict=True)
            if delay is not None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("threads", [1, 2, MORE_THAN_CORES])
def test_a_phase_sees_all_that_the_one_before_wrote(threads: int) -> None:
    for _ in range(30):
        chain = Chain(threads)
        chain.run(workers(threads))
        chain.check()


@pytest.mark.parametrize("shares", [1, 2, 7])
def test_workers_without_a_share_wait_for_the_others(shares: int) -> None:
    for _ in range(100):
        chain = Chain(8, shares)
        chain.run(workers(8))
        chain.check()


@pytest.mark.parametrize(
    "delays", [(0.0, 0.02), (0.02, 0.0), (None, 0.0), (0.0, None, 0.001, None), (0.0, 0.0, 0.2)]
)
def test_late_and_missing_workers_hold_nobody_up(delays: Sequence[float | None]) -> None:
    chain = Chain(len(delays))
    chain.run(Starting(*delays))
    chain.check()


def test_a_phase_begins_when_the_slowest_share_of_the_one_before_is_done() -> None:
    log: list[tuple[str, int]] = []

    def phase(name: str, shares: int, seconds: float) -> tuple[Phase, object]:
        @ctypes.CFUNCTYPE(None, ctypes.c_int64)
        def function(share: int) -> None:
            log.append((f"{name} begins", share))
            time.sleep(seconds if share == 0 else 0)
            log.append((f"{name} ends", share))

        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        return callbacks().phase(shares, function=address), function

    plan = [phase("first", 7, 0.05), phase("second", 1, 0.02), phase("third", 20, 0.0)]
    run_phases([phase for phase, _ in plan], [0] * 5, Starting(*[0.0] * 5))
    events = [event for event, _ in log]
    assert "first ends" not in events[events.index("second begins") :]
    assert "second ends" not in events[events.index("third begins") :]
    counts = {"first": 7, "second": 1, "third": 20}
    assert Counter(log) == {
        (f"{name} {event}", share): 1
        for name, shares in counts.items()
        for event in ("begins", "ends")
        for share in range(shares)
    }


def test_no_phases_and_phases_without_shares_are_no_work() -> None:
    run_phases([], [0, 0], workers(2))
    chain = Chain(2)
    nothing = callbacks().phase(0, function=0)
    chain.phases.insert(1, nothing)
    chain.run(workers(2))
    del chain.phases[1]
    chain.check()


@pytest.mark.parametrize("threads", [1, 2, MORE_THAN_CORES])
def test_an_interruption_is_raised_and_leaves_the_workers_as_they_were(threads: int) -> None:
    for milliseconds in range(10):
        chain = Chain(threads)
        timer = threading.Timer(milliseconds / 1000, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # it may come anywhere in the loop
            timer.start()
            while True:
                chain.run(workers(threads))
        timer.join()
        again = Chain(threads)
        again.run(workers(threads))
        again.check()


def test_a_long_wait_leaves_the_processor_to_others() -> None:
    emit = Emitter("wait", counter=INDICES, least=INDEX, pause=INDEX)
    emit.wait_for(emit["counter"], emit["least"], emit["pause"])
    wait, counter = emit.compile(), np.zeros(1, np.int64)

    @ctypes.CFUNCTYPE(None)
    def others_work() -> None:
        counter[0] += 1

    arguments = counter.ctypes.data, 3, ctypes.cast(others_work, ctypes.c_void_p).value or 0
    waiting = threading.Thread(target=wait, args=arguments, daemon=True)
    waiting.start()
    waiting.join(10)
    assert not waiting.is_alive()
    assert counter[0] == 3


def test_arguments_that_a_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(TypeError, match=r"source, target, last; not source, target$"):
        mirrored_sums().phase(1, source=0, target=0)
