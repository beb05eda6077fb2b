"""A run that is stopped in any way leaves its finished blocks, and no complete output."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tiny_network
import zarr
from command_line import LONG_VOLUME, one_line, read_main, voxels, write_case, znni
from fakes import Fake, fake_catalogue
from interrupted_runs import OUTPUTS
from numpy.typing import NDArray
from paths import SUPPORT
from small_disk import small_disk

from bench.same_output import difference
from znni.plans.primitive import convolved

SCRIPT = SUPPORT / "stopped_run.py"
FAST = Fake("conv", convolved)  # computes the same as the one in stopped_run.py, at once


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.float64]:
    """Return the output of a complete run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("expected"))
        write_case(Path())
        return tiny_network.expected(voxels(LONG_VOLUME))


@contextmanager
def started(fate: str, folder: Path, out: str = "out.h5") -> Iterator[subprocess.Popen[str]]:
    """Start a run; return it once its first block is written."""
    command = [sys.executable, SCRIPT, fate, "infer", "volume.h5", "--net", "tiny.yaml"]
    options = ["--out", out, "--ram", "512.4MiB"]
    with subprocess.Popen(
        [*command, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "block\n"
        yield process
        if process.poll() is None:
            process.kill()


def check_finished_blocks(partial: Path, expected: NDArray[np.float64]) -> None:
    """Check that all values other than zero are right, and that the first slice exists."""
    found = zarr.open_array(f"{partial}/0")[...] if partial.is_dir() else read_main(partial)
    assert found.shape == expected.shape
    written = found != 0
    assert written[:, 0, 0, 0].all()
    assert not written.all()
    np.testing.assert_allclose(found[written], expected[written], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "out"),
    [
        (signal.SIGINT, "out.h5"),
        (signal.SIGTERM, "out.h5"),
        (signal.SIGHUP, "out.h5"),
        (signal.SIGINT, "out.zarr"),
    ],
)
def test_a_signal(
    number: signal.Signals, out: str, long_case: Path, expected: NDArray[np.float64]
) -> None:
    with started("wait", long_case, out) as process:
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == 128 + number
    message = one_line(err)
    assert message.startswith(f"stopped by {number.name}; {out} was not made; {out}.partial")
    assert "finished block" in message
    assert not (long_case / out).exists()
    check_finished_blocks(long_case / f"{out}.partial", expected)


@pytest.mark.slow
@pytest.mark.parametrize("out", OUTPUTS)
def test_killed_outright(out: str, long_case: Path, expected: NDArray[np.float64]) -> None:
    with started("wait", long_case, out) as process:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (long_case / out).exists()
    check_finished_blocks(long_case / f"{out}.partial", expected)


def check_it_goes_on(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the same command, run again, gives the output of a run that never failed."""
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _: fake_catalogue(FAST))
    command = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", out, "--ram", "512.4MiB")
    assert "were finished before" in znni(*command).out
    whole = Path(shutil.move(out, "resumed"))
    assert znni(*command).code == 0
    assert difference(Path(out), whole) == ""


def check_write_failure(process: subprocess.Popen[str], out: str, reason: str) -> None:
    _, err = process.communicate()
    message = one_line(err)
    assert process.returncode == 4
    assert f"{out}.partial: cannot be written: {reason}; " in message
    assert "was not made; " in message
    assert "finished block" in message


@pytest.mark.slow
@pytest.mark.parametrize("out", OUTPUTS)
def test_a_file_that_may_not_grow(
    out: str, long_case: Path, expected: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    with started("limit", long_case, out) as process:
        check_write_failure(process, out, "File too large")
    assert not (long_case / out).exists()
    check_finished_blocks(long_case / f"{out}.partial", expected)
    check_it_goes_on(out, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("out", OUTPUTS)
def test_a_disk_that_fills_up(
    out: str, long_case: Path, expected: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(long_case, "600k") as disk:
        with started("fill", long_case, f"disk/{out}") as process:
            check_write_failure(process, out, "No space left on device")
        assert not (disk / out).exists()
        check_finished_blocks(disk / f"{out}.partial", expected)
        (disk / "filler").unlink()
        check_it_goes_on(f"disk/{out}", monkeypatch)


def test_help_and_import_load_nothing_heavy() -> None:
    code = """
import sys, znni
sys.argv = ["znni", "--help"]
from znni.cli import main
main()
heavy = {"numpy", "numba", "h5py", "cupy", "pyfftw", "scipy", "psutil", "torch", "pydantic"}
heavy |= {"zarr", "fsspec", "tifffile", "nibabel"}
sys.exit(f"loaded: {heavy & sys.modules.keys()}" if heavy & sys.modules.keys() else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "infer" in done.stdout
