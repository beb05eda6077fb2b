"""The process of a command: what it loads, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import SMALL_NET

# Libraries that some inputs, networks or devices need, and none of these commands.
NOT_NEEDED = {
    "cupy", "dask", "fsspec", "h5py", "matplotlib", "multiprocessing.pool", "nibabel", "onnx",
    "pandas", "pyarrow", "scipy.fft", "scipy.ndimage", "scipy.special", "tifffile", "torch",
    "zarr",
}  # fmt: skip

LOADED = """
import sys
from znni.cli import main
sys.argv = ["znni", *sys.argv[1:]]
main()
print("loaded:", *sys.modules)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "small.yaml").write_text(SMALL_NET)
    with h5py.File(tmp_path / "volume.h5", "w") as file:
        file["main"] = np.zeros((20, 20, 20), np.float32)
    return tmp_path


def loaded(folder: Path, *arguments: str) -> set[str]:
    """Return the modules that a command loads."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments, "--net", "small.yaml", "--device", "cpu"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.slow
def test_a_plan_loads_no_library_that_it_does_not_need(folder: Path) -> None:
    assert not loaded(folder, "plan", "--volume", "100,100,100") & NOT_NEEDED


@pytest.mark.slow
def test_a_run_loads_no_library_that_it_does_not_need(folder: Path) -> None:
    arguments = ("infer", "volume.h5", "--random-weights", "0", "--out", "out.h5")
    assert not loaded(folder, *arguments) & (NOT_NEEDED - {"h5py"})


# Runs each line of its input as a command, in a process of its own.
STARTING = """
import os, sys, time
from znni.machine import gpus
gpus.begin_cuda = lambda: print("started", end="")
import znni.cli
znni.cli.main = lambda: time.sleep(0.2)
from znni import __main__
for command in sys.stdin.read().splitlines():
    if not os.fork():
        sys.argv = ["znni", *command.split()]
        __main__.run()
        sys.exit()
    assert os.wait()[1] == 0
    print(flush=True)
"""


@pytest.mark.slow
def test_cuda_begins_while_a_command_loads() -> None:
    begun = {
        "plan --volume 9,9,9": "",
        "infer volume.h5": "started",
        "infer volume.h5 --device gpu": "started",
        "infer volume.h5 --gpus 2": "",
        "infer volume.h5 --gpus=all": "",
        "infer volume.h5 --cluster local:2": "",
        "infer --help": "",
        "plan --device cpu": "",
        "infer volume.h5 --device=cpu": "",
        "view volume.h5": "",
        "": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", STARTING], input="\n".join([*begun, ""]),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert dict(zip(begun, done.stdout.splitlines(), strict=True)) == begun


ENDING = """
import atexit, sys, tempfile, threading, time, weakref
from znni import __main__

def command():
    import logging
    place = tempfile.TemporaryDirectory(dir=".", prefix="left-")
    sys.place, sys.kept = place, Slow()
    atexit.register(print, "registered")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("said")
    {ends}

class Slow:
    def __del__(self):
        print("torn down")

import znni.cli
znni.cli.main = command
__main__.run()
"""


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('why')", 1),
        ("1 / 0", 1),
    ],
)
def test_the_end_waits_for_threads_and_what_is_registered_and_tears_nothing_down(
    ends: str, code: int, tmp_path: Path
) -> None:
    program = ENDING.replace("{ends}", ends)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "said\nthread\nregistered\n")
    assert not list(tmp_path.glob("left-*"))


# Interrupts a command while it loads.
LOADING = """
import signal, sys

class Interrupting:
    @staticmethod
    def find_spec(name, *_):
        if name == "znni.cli.infer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
signal.signal(signal.SIGINT, signal.default_int_handler)
from znni import __main__
__main__.run()
"""


def test_an_interrupt_while_a_command_loads_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "znni: error: stopped by SIGINT\n")
