"""CUDA's failures become znni's errors, and a missing library is named with its remedy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from gpu_layers import needs_compiler

from znni.core.errors import InvalidInput, OutOfDeviceMemory, RunFailed
from znni.machine import cuda
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


def test_a_broken_cupy_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> Any:
        raise ImportError("libcudart.so.13: cannot open", name="cupy_backends")

    monkeypatch.setattr(cuda, "import_module", broken)
    with pytest.raises(InvalidInput, match=r"cannot be imported \(libcudart"):
        cuda.cupy.__wrapped__()


def test_what_declares_costs_is_imported_without_cupy() -> None:
    modules = "cuda", "cuda_kernels", "device_arena"
    names = ", ".join(["znni.inference.planning", *(f"znni.machine.{it}" for it in modules)])
    code = f"import sys; sys.modules['cupy'] = None; import {names}"
    subprocess.run([sys.executable, "-c", code], check=True)
