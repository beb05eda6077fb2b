"""CUDA's failures become znni's errors, and a missing library is named with its remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_layers import needs_compiler

from znni.core.child_process import environment
from znni.core.errors import InvalidInput, RunFailed
from znni.core.memory_errors import OutOfDeviceMemory
from znni.machine import cuda, gpus
from znni.machine.cuda import LibraryFailed, device_errors


@needs_compiler
@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (0, RunFailed, r"H200 failed \(cuFFT reports status 5\); run again, or with device='cpu'"),
        (2, OutOfDeviceMemory, r"H200 has too little memory left .*; plan with less"),
    ],
)
def test_what_a_library_reports_is_one_error(
    status: int, error: type[RunFailed], said: str
) -> None:
    with pytest.raises(error, match=said) as raised, device_errors("H200"):
        raise LibraryFailed("cuFFT reports status 5", status)
    assert isinstance(raised.value, MemoryError) == (status == 2)


def test_without_cupy_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InvalidInput, match=r"not installed.*pip install 'znni\[gpu\]'"):
        cuda.cupy.__wrapped__()


@pytest.mark.slow
@needs_compiler
def test_cupy_needs_no_home_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps kernels of its own in the home, and otherwise could not be imported."""
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    (tmp_path / "home").touch()
    code = (
        "from znni.machine.cuda import cupy; import os; "
        "print(cupy().__name__, os.environ.get('CUPY_CACHE_IN_MEMORY'))"
    )

    def said(home: Path) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.check_output(command, text=True, env=environment({"HOME": str(home)}))

    assert said(tmp_path / "home") == "cupy 1\n"
    (tmp_path / "own").mkdir()
    assert said(tmp_path / "own") == "cupy None\n"


def test_a_user_without_a_home_keeps_kernels_in_a_named_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run as a user that its system does not know."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    assert cuda._keeps_kernels()
    monkeypatch.delenv("CUPY_CACHE_DIR")
    assert not cuda._keeps_kernels()


def test_a_broken_cupy_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> Any:
        raise ImportError("libcudart.so.13: cannot open", name="cupy_backends")

    monkeypatch.setattr(cuda, "import_module", broken)
    with pytest.raises(InvalidInput, match=r"cannot be imported \(libcudart"):
        cuda.cupy.__wrapped__()


def test_several_cupy_packages_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders name them: other packages for CuPy, and files of another kind, do not count."""
    for number, name in enumerate(
        [
            "cupy_cuda13x-14.2.0.dist-info",
            "cupy_cuda13x-14.1.0.dist-info",
            "numpy-2.0.0.dist-info",
            "cupy_cuda12x-13.6.0-py3.11.egg-info",
            "cupyx_tools-1.0.dist-info",
            "cupy",
        ]
    ):
        (tmp_path / str(number % 2) / name).mkdir(parents=True)
    paths = [str(tmp_path / name) for name in ("0", "1", "missing.zip")]
    monkeypatch.setattr(sys, "path", paths)
    assert cuda.cupy_packages() == ["cupy-cuda12x", "cupy-cuda13x"]
    with pytest.raises(InvalidInput, match=r"\(cupy-cuda12x, cupy-cuda13x\).*pip uninstall"):
        cuda.cupy.__wrapped__()


def test_packages_are_known_as_their_metadata_names_them() -> None:
    named = {found.name for found in distributions() if found.name}
    there = {name for name in named if name == "cupy" or name.startswith("cupy-cuda")}
    assert set(cuda.cupy_packages()) == there


class CudaFailed(Exception):
    """What CUDA's runtime raises."""


def runtime_with(driver: int, count: int | None) -> SimpleNamespace:
    """Return a runtime of CUDA 13 on a driver; without a count it fails."""

    def count_or_fail() -> int:
        if count is None:
            raise CudaFailed("cudaErrorInsufficientDriver")
        return count

    return SimpleNamespace(
        CUDARuntimeError=CudaFailed,
        getDeviceCount=count_or_fail,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: 13010,
    )


@pytest.mark.parametrize(
    ("driver", "count", "said", "in_vain"),
    [
        (12040, None, r"supports CUDA 12\.4, and CuPy is for CUDA 13\.1; update .*gpu12", True),
        (13000, None, r"CUDA finds no GPU \(cudaErrorInsufficientDriver\)", False),
        (13020, 0, r"^CUDA finds no GPU$", False),
        (13020, 2, r"^$", False),
    ],
)
def test_an_old_driver_is_named_with_its_remedy(
    driver: int, count: int | None, said: str, in_vain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = runtime_with(driver, count)
    monkeypatch.setattr(gpus, "has_driver", lambda: True)
    monkeypatch.setattr(gpus, "find_spec", lambda _name: True)
    monkeypatch.setattr(
        gpus, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    )
    found = gpus.missing_for_gpu.__wrapped__()
    assert re.search(said, found.what)
    assert found.in_vain == in_vain


def test_what_declares_costs_is_imported_without_cupy() -> None:
    modules = "cuda", "cuda_kernels", "device_arena"
    names = ", ".join(["znni.inference.planning", *(f"znni.machine.{it}" for it in modules)])
    code = f"import sys; sys.modules['cupy'] = None; import {names}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("named", "own", "found"), [(None, "90", 90), ("8.0", "90", 80), ("8.6", "120", 86)]
)
def test_a_gpu_may_stand_for_an_older_one(
    named: str | None, own: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.setenv(cuda.STAND_IN, named)
    assert cuda.compute_capability(SimpleNamespace(compute_capability=own)) == found
    assert cuda.stands_in() == (named is not None)


@pytest.mark.parametrize("named", ["9.0", "12.0", "80", "Ampere", ""])
def test_a_gpu_stands_for_none_whose_kernels_it_cannot_run(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cuda.STAND_IN, named)
    with pytest.raises(InvalidInput, match=r"capability 9\.0, can stand for .* below 9\.0; give"):
        cuda.compute_capability(SimpleNamespace(compute_capability="90"))
