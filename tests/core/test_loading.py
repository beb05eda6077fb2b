"""Loading of modules by a command."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from paths import ROOT

from znni.core.loading import without_collections
from znni.machine.detect import usable_cores

WITHOUT_GARBAGE = """
import gc, sys, threading
from znni.core import loading
if sys.argv[1] == "own":
    loading.own_process()
with loading.loading(begin=lambda: 1 / 0):
    looked = gc.isenabled()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print(looked, gc.isenabled(), gc.get_freeze_count() > 0)
"""


def said(code: str, *arguments: str) -> str:
    """What a new process prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert not done.stderr
    return done.stdout.strip()


def test_a_command_looks_for_no_garbage_while_it_loads() -> None:
    assert said(WITHOUT_GARBAGE, "own") == "False True True"


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
import threading
from znni.core import loading
loading.own_process()
begun = threading.Event()
with loading.loading(begin=begun.set):
    print(begun.wait(60))
"""


def test_other_work_begins_meanwhile() -> None:
    assert said(BEGUN) == "True"


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


def test_a_process_of_someone_else_stays_as_it_is() -> None:
    assert said(WITHOUT_GARBAGE, "other") == "True True False"
