"""A trace of runs: what each thread did, and when. Chrome and Perfetto draw such files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread
from time import perf_counter
from typing import Any

from znni.core.errors import InvalidInput

MICROSECONDS = 1e6

# The track of work on a GPU, beside those of the host's threads.
GPU_TRACK = "GPU"


class Trace:
    """Spans of work, as events of Chrome's trace format. Any thread may add one."""

    def __init__(self) -> None:
        self._begun = perf_counter()
        self._spans: list[tuple[str, str, float, float, str]] = []

    def add(self, name: str, begun: float, ended: float, detail: str, track: str) -> None:
        """Add a span.

        Args:
            name: the work.
            begun: the moment at which it began, by ``perf_counter``.
            ended: the moment at which it ended.
            detail: more about it; empty for nothing.
            track: the line on which it is drawn.
        """
        self._spans.append((name, track, begun, ended, detail))  # atomic

    def events(self) -> list[dict[str, Any]]:
        """Return all events: the names of the tracks, and their spans."""
        tracks: dict[str, int] = {}
        spans = [
            {
                "name": name,
                "ph": "X",
                "pid": 0,
                "tid": tracks.setdefault(track, len(tracks)),
                "ts": (begun - self._begun) * MICROSECONDS,
                "dur": (ended - begun) * MICROSECONDS,
                **({"args": {"detail": detail}} if detail else {}),
            }
            for name, track, begun, ended, detail in self._spans
        ]
        names = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": track}}
            for track, number in tracks.items()
        ]
        return names + spans


_active: list[Trace] = []


@contextmanager
def tracing(path: str | Path | None) -> Iterator[None]:
    """Write a trace of the runs in a ``with`` block, however it ends.

    It has the stages of blocks and the steps of layers in this process, and the steps on its GPU.
    Open it at https://ui.perfetto.dev or in chrome://tracing.

    Args:
        path: the file, such as ``trace.json``; None: there is no trace.

    Raises:
        InvalidInput: the file cannot be written, or another trace is being made.
    """
    if path is None:
        yield
        return
    if _active:
        raise InvalidInput(f"{path}: another trace is being made; end it first")
    _write(path, [])  # refused before the run
    trace = Trace()
    _active.append(trace)
    try:
        yield
    except BaseException as error:
        _active.remove(trace)
        try:
            _write(path, trace.events())
        except InvalidInput as failed:
            error.add_note(str(failed))
        raise
    _active.remove(trace)
    _write(path, trace.events())


@contextmanager
def span(name: str) -> Iterator[None]:
    """Add the work of a ``with`` block to the trace, if one is being made."""
    begun = perf_counter()
    try:
        yield
    finally:
        note_span(name, begun, perf_counter())


def note_span(
    name: str, begun: float, ended: float, detail: str = "", track: str | None = None
) -> None:
    """Add a span to the trace, if one is being made, as ``Trace.add``.

    Its track is by default the thread that calls.
    """
    for trace in tuple(_active):
        trace.add(name, begun, ended, detail, track or current_thread().name)


def _write(path: str | Path, events: list[dict[str, Any]]) -> None:
    try:
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise InvalidInput(f"{path}: the trace cannot be written: {error.strerror}") from None
