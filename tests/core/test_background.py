"""Work in a thread of its own."""

from __future__ import annotations

from threading import Event, current_thread

import pytest

from znni.core.background import in_background


def test_the_result_comes_from_another_thread_and_may_be_awaited() -> None:
    go_on = Event()
    result = in_background(lambda: go_on.wait(60) and current_thread())
    assert not result.done()
    go_on.set()
    thread = result.result()
    assert thread is not current_thread()
    assert thread.daemon


def test_the_result_raises_what_the_work_raises() -> None:
    def fails() -> None:
        raise SystemExit("over")

    with pytest.raises(SystemExit, match="over"):
        in_background(fails).result()
