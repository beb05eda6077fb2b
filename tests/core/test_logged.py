"""Work that says so if it takes long."""

from __future__ import annotations

import logging
import time

import pytest

from znni.core.logged import telling_if_long


@pytest.fixture
def waits(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="znni.waits")
    return caplog


def test_long_work_says_for_how_long_at_first_and_then_more_seldom(
    waits: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[float] = []

    class Counting:
        """Stands in for an event: four waits go by at once, and the fifth ends."""

        def wait(self, seconds: float) -> bool:
            moments.append(seconds)
            return len(moments) > 4

        def set(self) -> None:
            while len(moments) <= 4:
                time.sleep(0.001)

    monkeypatch.setattr("znni.core.logged.Event", Counting)
    with telling_if_long("sorting"):
        pass
    assert waits.messages == [f"sorting, {seconds} s so far" for seconds in (2, 4, 8, 16)]
    assert moments == [2, 2, 4, 8, 16]


def test_short_work_says_nothing_and_its_error_passes(waits: pytest.LogCaptureFixture) -> None:
    with telling_if_long("sorting"):
        pass
    with pytest.raises(ValueError, match="wrong"), telling_if_long("sorting"):
        raise ValueError("wrong")
    assert not waits.messages
