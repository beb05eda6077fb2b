"""The engine on systems without Linux's own parts: they are taken away here.

Nothing here shows that another system works; only a run there does.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from paths import ROOT

HOOK = ROOT / "tests" / "support" / "other_systems"
TESTS = "tests/engine/test_engine.py", "tests/volumes/test_hdf5_output.py"
# It counts what this system's own functions are asked.
EXCEPT = "tests/volumes/test_hdf5_output.py::test_a_new_output_asks_little_of_the_file_system"
MISSING = """
from znni.core import system
from znni.machine import arrays, detect, process_age, processor
assert system.c_function("prctl") is None
assert not hasattr(system.os, "memfd_create")
assert (system.fcntl is None, not system.OPENS_FOLDERS) == (WINDOWS, WINDOWS)
assert 0 < arrays.resident_memory() <= arrays.high_water_mark()
assert process_age.process_age() > 0
assert detect.detect_host().host.name == processor.processor_name()
"""

systems = pytest.mark.parametrize("system", ["macos", "windows"])


def on(system: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as if on another system."""
    found = os.pathsep.join(map(str, (HOOK, ROOT)))
    variables = {**os.environ, "PYTHONPATH": found, "ZNNI_TEST_SYSTEM": system}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@systems
def test_linux_s_own_parts_are_gone_and_have_fallbacks(system: str) -> None:
    done = on(system, "-c", MISSING.replace("WINDOWS", str(system == "windows")))
    assert done.returncode == 0, done.stderr


def test_windows_refuses_what_passes_descriptors() -> None:
    program = "from znni.core.child_process import start_with; start_with([0], ['true'])"
    said = on("windows", "-c", program).stderr.strip().splitlines()[-1]
    assert "InvalidInput: several GPUs, clusters and the plugin for napari need processes" in said


@pytest.mark.slow
@systems
def test_the_engine_runs(system: str) -> None:
    done = on(system, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, "--deselect", EXCEPT)
    assert done.returncode == 0, done.stdout[-3000:]
