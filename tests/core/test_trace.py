"""Traces of runs: spans of all threads, in Chrome's format."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import znni
from znni.core.errors import InvalidInput
from znni.core.trace import GPU_TRACK, note_span, span, tracing

NET = """\
name: tiny
layers:
  - conv: {features: 4, kernel: 3}
  - pool: {window: 2}
  - conv: {features: 2, kernel: 3}
"""


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def test_spans_of_threads_and_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def work() -> None:
        with span("reading"):
            pass

    with tracing(path):
        thread = Thread(target=work, name="reader")
        thread.start()
        thread.join()
        note_span("conv1", 1.0, 1.5, "gpu_direct", GPU_TRACK)
    named = {it["tid"]: it["args"]["name"] for it in events(path) if it["ph"] == "M"}
    spans = {it["name"]: it for it in events(path) if it["ph"] == "X"}
    assert {name: named[it["tid"]] for name, it in spans.items()} == {
        "reading": "reader", "conv1": "GPU",
    }  # fmt: skip
    assert spans["conv1"]["dur"] == 5e5
    assert spans["conv1"]["args"] == {"detail": "gpu_direct"}
    with span("no trace is made"):
        pass
    assert len(events(path)) == 4


def test_a_run_shows_its_stages_and_layers(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(NET)
    x = np.random.default_rng(0).random((24, 24, 24), np.float32)
    with znni.tracing(tmp_path / "trace.json"):
        znni.infer(
            x, tmp_path / "tiny.yaml", tmp_path / "out.h5", random_seed=0, device="cpu",
            costs="built-in",
        )  # fmt: skip
    found = [it for it in events(tmp_path / "trace.json") if it["ph"] == "X"]
    assert {"planning", "building", "running", "reading", "writing", "conv1", "conv2"} <= {
        it["name"] for it in found
    }
    running = next(it for it in found if it["name"] == "running")
    for layer in (it for it in found if it["name"].startswith("conv")):
        assert layer["args"]["detail"]
        assert running["ts"] <= layer["ts"] + layer["dur"] <= running["ts"] + running["dur"] + 1


def test_a_trace_is_written_though_the_run_fails(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(ZeroDivisionError), tracing(path), span("planning"):
        raise ZeroDivisionError
    assert [it["name"] for it in events(path) if it["ph"] == "X"] == ["planning"]


def test_traces_that_cannot_be_made(tmp_path: Path) -> None:
    def run(path: Path | None) -> None:
        with tracing(path):
            begun.append(path)

    begun: list[Path | None] = []
    with pytest.raises(InvalidInput, match="the trace cannot be written: No such file"):
        run(tmp_path / "missing" / "trace.json")
    with tracing(tmp_path / "one.json"), pytest.raises(InvalidInput, match="another trace is"):
        run(tmp_path / "two.json")
    run(None)
    assert begun == [None]
