"""Loading of modules by a command."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from paths import ROOT

from znni.core.loading import without_collections
from znni.machine.detect import usable_cores


def said(code: str, *arguments: str) -> str:
    """What a new process prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert not done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_begin_again_after_work_without_them(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with without_collections():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


BEGUN = """
import sys, threading
from znni.core import loading
if sys.argv[1] == "own":
    loading.own_process()
begun = threading.Event()
loading.begin(lambda: 1 / 0)
loading.begin(begun.set)
print(begun.wait(60 if sys.argv[1] == "own" else 0))
"""


@pytest.mark.parametrize(("process", "begins"), [("own", "True"), ("other", "False")])
def test_a_command_begins_other_work_meanwhile(process: str, begins: str) -> None:
    assert said(BEGUN, process) == begins


BLAS_THREADS = """
import sys
from znni.core import loading
if sys.argv[1] == "own":
    loading.own_process()
import numpy
from threadpoolctl import threadpool_info
print(*{it["num_threads"] for it in threadpool_info() if it["user_api"] == "blas"})
"""


@pytest.mark.skipif(usable_cores() < 2, reason="there is one thread anyway")
def test_a_command_starts_no_threads_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("OPENBLAS", "OMP"):  # tests of clusters leave both in the environment
        monkeypatch.delenv(f"{library}_NUM_THREADS", raising=False)
    assert said(BLAS_THREADS, "own") == "1"
    assert int(said(BLAS_THREADS, "other")) > 1
