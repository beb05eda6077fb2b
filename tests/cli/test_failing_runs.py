"""Runs that end before their first block: memory runs out, signals arrive, or there is a bug."""

from __future__ import annotations

import logging
import re
import signal
import time
from pathlib import Path

import pytest
from command_line import INFER, succeeds, znni
from command_line import refused_without_trace as refused

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


def test_more_memory_than_there_is_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "znni")
    succeeds(*INFER)
    assert not caplog.messages
    monkeypatch.setattr("znni.machine.detect._available_memory", lambda: 300 << 20)
    succeeds(*INFER, "--ram", "2GiB", "--overwrite")
    assert caplog.messages == [
        "the plan takes 512 MiB and 256 MiB are available: the system may end the run; "
        "give ram='256MiB' (--ram 256MiB)"
    ]


def test_memory_for_no_patch_and_the_least_that_will_do() -> None:
    message = refused(*INFER, "--ram", "1MB", code=3)
    found = re.search(r"--ram (\w+)", message)
    assert found, message
    assert "2 output voxels" in message
    assert not list(Path().glob("*.partial"))
    succeeds(*INFER, "--ram", found[1])


def test_a_bug_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_machine: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("znni.inference.planning.catalogue", broken)
    assert "ZeroDivisionError: oh; a bug: add --debug" in refused(*INFER, code=70)
    outcome = znni(*INFER, "--debug")
    assert outcome.code == 70
    assert "Traceback" in outcome.err
    assert "in broken" in outcome.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_before_the_first_block(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def stopped(_machine: object) -> None:
        signal.raise_signal(number)
        time.sleep(10)  # Python may call the handler late

    monkeypatch.setattr("znni.inference.planning.catalogue", stopped)
    message = refused(*INFER, code=128 + number)
    assert message == f"stopped by {number.name}; out.h5 was not made"
    assert not Path("out.h5.partial").exists()
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(_machine: object) -> None:
        raise MemoryError("Unable to allocate 9 PiB")

    monkeypatch.setattr("znni.inference.planning.catalogue", greedy)
    assert "memory ran out: Unable to allocate 9 PiB" in refused(*INFER, code=1)
