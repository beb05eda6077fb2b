"""Signals that ask a command to stop are never lost."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from znni.cli.signals import Stopped, stopping_on_signals


class Asking:
    """Sends this process a signal when it is deleted, where Python drops exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@stopping_on_signals()
def delete_and_wait(asking: list[Asking]) -> None:
    asking.clear()
    time.sleep(30)


def test_a_signal_while_an_object_is_deleted_stops_a_command() -> None:
    hook = sys.unraisablehook
    asking = [Asking()]
    with pytest.raises(Stopped, match="stopped by SIGTERM") as stopped:
        delete_and_wait(asking)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert sys.unraisablehook is hook


def test_other_dropped_exceptions_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("dropped")

    told = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_value))
    failing = Failing()
    with stopping_on_signals():
        del failing
    assert [str(it) for it in told] == ["dropped"]
