"""Kernels whose machine code is kept, and which then run without numba."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from paths import ROOT

from znni.core import user_cache
from znni.core.user_cache import store_checked
from znni.primitives.cpu.common import machine_code, native_kernel
from znni.primitives.cpu.common.lazy_kernel import compiled_seconds
from znni.primitives.cpu.common.native_arguments import Kinds, flatten
from znni.primitives.cpu.common.native_kernel import NativeKernel
from znni.primitives.cpu.common.numba_kernel import numba_kernel, summing_kernel


class Pair(NamedTuple):
    """Two arguments as one."""

    values: Any
    factor: Any


def scaled(values, pair, scale, times, doubled, out):  # type: ignore[no-untyped-def]
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j] * scale * times + pair.values[j] * pair.factor[0]
            out[i, j] = value * np.float32(2) if doubled else value


def expected(values: Any, pair: Pair, scale: float, times: int, doubled: bool) -> Any:
    """Return what ``scaled`` gives."""
    return (values * scale * times + pair.values * pair.factor[0]) * (2 if doubled else 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept machine code, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "znni" / "kernels"


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forbid to compile from now on."""

    def forbid() -> None:
        monkeypatch.setattr(NativeKernel, "_compile_for", None)

    return forbid


def add_one(values):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        values[i] += np.float32(1)


def add_one_to(kernel: Callable[..., None]) -> list[float]:
    """Return what a kernel makes of three zeros."""
    values = np.zeros(3, np.float32)
    kernel(values)
    return [float(value) for value in values]


ONES = [1.0, 1.0, 1.0]


@pytest.mark.parametrize("doubled", [False, True])
@pytest.mark.parametrize("layout", ["C", "F", "sliced", "backwards", "read only", "empty"])
def test_arguments_of_all_kinds_arrive(layout: str, doubled: bool) -> None:
    values = np.arange(20, dtype=np.float32).reshape(4, 5)
    values = {
        "F": np.asfortranarray(values),
        "sliced": values[::2, 1:],
        "backwards": values[::-1, ::-2],
        "empty": values[:0],
    }.get(layout, values)
    values.flags.writeable = layout != "read only"
    pair = Pair(np.arange(values.shape[1], dtype=np.int32), (np.float64(0.5), 7))
    out = np.full(values.shape, np.nan, np.float32)
    arguments = values, pair, np.float32(1.5), 3
    kernel = numba_kernel(scaled)
    kernel(*arguments, doubled, out)
    assert np.array_equal(out, expected(*arguments, doubled))


def test_it_is_loaded_without_numba(folder: Path, without_numba: Callable[[], None]) -> None:
    before = compiled_seconds()
    assert add_one_to(numba_kernel(add_one)) == ONES
    assert len(list(folder.iterdir())) == 1
    known = compiled_seconds()
    assert known > before
    without_numba()
    assert add_one_to(numba_kernel(add_one)) == ONES
    assert compiled_seconds() == known


@pytest.mark.parametrize("harm", ["cut", "empty", "changed", "of something else", "unreadable"])
def test_a_damaged_file_is_made_again(harm: str, folder: Path) -> None:
    assert add_one_to(numba_kernel(add_one)) == ONES
    (file,) = folder.iterdir()
    content = file.read_bytes()
    file.unlink()
    match harm:
        case "cut":
            file.write_bytes(content[:-100])
        case "empty":
            file.touch()
        case "changed":
            at = len(content) // 2
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        case "of something else":  # complete, but no such function
            store_checked(file, b"name\nno machine code")
        case "unreadable":
            file.mkdir()
    assert add_one_to(numba_kernel(add_one)) == ONES
    if harm != "unreadable":
        assert len(file.read_bytes()) == len(content)


@pytest.mark.parametrize("hangs", [False, True])
def test_machine_code_that_another_process_compiles_is_waited_for(
    hangs: bool, folder: Path, without_numba: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert add_one_to(numba_kernel(add_one)) == ONES
    (file,) = folder.iterdir()
    content = file.read_bytes()
    file.unlink()
    with file.with_suffix(".lock").open("ab") as lock, ThreadPoolExecutor(1) as pool:
        flock(lock, LOCK_EX)
        if hangs:
            monkeypatch.setattr(native_kernel, "LONGEST_WAIT", 0.1)
        else:
            without_numba()
        found = pool.submit(add_one_to, numba_kernel(add_one))
        if not hangs:
            assert not wait([found], 0.1).done
            file.write_bytes(content)
        assert found.result(60) == ONES
    assert list(folder.iterdir()) == [file]


def told(kernel: Any, *arguments: Any) -> Path:
    """The file of a kernel's machine code for some arguments."""
    native_kernel._environment.cache_clear()
    file: Path = kernel._file(flatten(arguments, []))
    native_kernel._environment.cache_clear()
    return file


ROW = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(3, np.float64),
        np.zeros((1, 3), np.float32),
        np.zeros(6, np.float32)[::2],
        np.broadcast_to(np.float32(0), (3,)),
        np.float32(0),
        1,
        1.0,
        True,
        (ROW,),
        (ROW, ROW),
        Pair(ROW, ROW),
    ],
)
def test_a_file_is_of_one_kind_of_arguments(other: Any) -> None:
    kernel = numba_kernel(add_one)
    assert told(kernel, other) != told(kernel, ROW)
    assert told(kernel, ROW[:2].copy()) == told(kernel, ROW)


def test_a_change_of_what_machine_code_depends_on_is_another_file(
    monkeypatch: pytest.MonkeyPatch, own_folder: Path
) -> None:
    kernel: Any = numba_kernel(add_one)
    files = {told(kernel, ROW)}
    changes: list[tuple[Any, str, Any]] = [
        (native_kernel, "_SOURCE", "of other code"),
        (native_kernel, "_numba_version", lambda: b"1.2.3"),
        (np, "__version__", "1.2.3"),
        (machine_code, "environment", lambda: "another processor"),
        (sys, "version", "3.99"),
        (kernel.function, "__qualname__", "another"),
        (kernel.function, "__module__", "another"),
        (kernel, "options", {"nogil": True}),
        (kernel.function, "__code__", scaled.__code__),
    ]
    for owner, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            files.add(told(kernel, ROW))
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_OPT", "1")
        files.add(told(kernel, ROW))
    (own_folder / ".numba_config.yaml").write_text("opt: 1\n")
    files.add(told(kernel, ROW))
    files.add(told(summing_kernel(add_one), ROW))
    assert len(files) == len(changes) + 4


def test_processor_and_llvm_are_told() -> None:
    said = machine_code.environment()
    assert str(machine_code.llvm.get_host_cpu_name()) in said
    assert "avx2" in said or "neon" in said
    assert machine_code.llvmlite.__version__ in said


FACTOR = 2.0


@numba_kernel
def _times_factor(values):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        values[i] *= FACTOR


def test_values_around_a_kernel_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel_of(width: int) -> Any:
        @numba_kernel
        def fill(values):  # type: ignore[no-untyped-def]
            for i in range(values.size):
                values[i] = width
            _times_factor(values)

        return fill

    file = told(kernel_of(3), ROW)
    assert told(kernel_of(3), ROW) == file
    assert told(kernel_of(4), ROW) != file
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", 3.0)  # which another kernel uses
        assert told(kernel_of(3), ROW) != file
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", object())
        with pytest.raises(TypeError, match="needs a repr"):
            told(kernel_of(3), ROW)


@pytest.mark.slow
def test_a_kernel_that_needs_numba_is_not_kept(folder: Path) -> None:
    """It makes an array, which is a function of numba's own. LLVM would end the process."""

    def make(values):  # type: ignore[no-untyped-def]
        made = np.zeros(values.size, np.float32)
        for i in range(values.size):
            made[i] = values[i] + np.float32(1)
        values[:] = made[::-1]

    kernel = NativeKernel(make, nogil=True)
    for _ in range(2):
        assert add_one_to(kernel) == ONES
    assert not folder.exists()


def test_machine_code_that_lacks_a_function_is_refused() -> None:
    source = "declare void @no_such_function()\ndefine void @f() {\ncall void @no_such_function()\n"
    module = machine_code.llvm.parse_assembly(f"{source}ret void\n}}\n")
    code = machine_code.target_machine().emit_object(module)
    with pytest.raises(machine_code.NotLinked, match="f"):
        machine_code.linked("f", code)
    with pytest.raises(machine_code.NotLinked, match="g"):
        machine_code.linked("g", code)


@pytest.mark.parametrize("kept", [False, True])
def test_an_error_within_a_kernel_is_raised(
    kept: bool, folder: Path, without_numba: Callable[[], None]
) -> None:
    def at(values, step):  # type: ignore[no-untyped-def]
        for i in range(0, values.size, step):
            values[i] = 1

    kernel = numba_kernel(at)
    kernel(np.zeros(3, np.float32), 1)
    if kept:
        without_numba()
        kernel = numba_kernel(at)
    with pytest.raises(RuntimeError, match=r"at.* ended with status"):
        kernel(np.zeros(3, np.float32), 0)
    assert len(list(folder.iterdir())) == 1


def test_what_no_kernel_takes_is_refused() -> None:
    with pytest.raises(TypeError, match="numbers, arrays and tuples"):
        numba_kernel(add_one)("text")


@pytest.mark.parametrize("kept", [False, True])
def test_threads_may_call_it_at_once(
    kept: bool, folder: Path, without_numba: Callable[[], None]
) -> None:
    if kept:
        add_one_to(numba_kernel(add_one))
        without_numba()
    kernel = numba_kernel(add_one)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: add_one_to(kernel), range(200))) == [ONES] * 200
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    user_cache._warn_once.cache_clear()
    assert add_one_to(numba_kernel(add_one)) == ONES
    assert "cannot be written" in caplog.text


def test_numba_is_held_to_the_numbers_that_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(arguments: Any, numbers: list[Any]) -> Kinds:
        return flatten(arguments[:1], numbers)

    def add(values, number):  # type: ignore[no-untyped-def]
        values[0] += number

    monkeypatch.setattr(native_kernel, "flatten", fewer)
    with pytest.raises(TypeError, match=r"numba compiled .* not for"):
        numba_kernel(add)(ROW.copy(), 1)


DEMO = """
import sys
from znni.cli import main
sys.argv = [
    "znni", "infer", "networks/cells.h5", "--net", "networks/cells-unet.yaml", "--out",
    {out!r}, "--overwrite", "--device", "cpu", "--roi", "0:32,0:64,0:64",
]
main()
print(sorted(name for name in sys.modules if name.split(".")[0] == "numba"))
"""


@pytest.mark.slow
def test_a_run_whose_kernels_are_kept_never_imports_numba(tmp_path: Path) -> None:
    script = DEMO.format(out=str(tmp_path / "out.h5"))
    for _ in range(2):  # the first run keeps them, if there are none
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_integers_of_more_than_64_bits_are_refused(folder: Path) -> None:
    def add(values, number):  # type: ignore[no-untyped-def]
        for i in range(values.size):
            values[i] += number

    kernel = numba_kernel(add)
    with pytest.raises(struct.error):
        kernel(np.zeros(3, np.float32), 2**63)
    assert not folder.exists()
    values = np.zeros(3, np.float32)
    kernel(values, -1)
    assert values.tolist() == [-1.0, -1.0, -1.0]


def test_arrays_of_other_classes_and_unaligned_ones_arrive() -> None:
    kernel = numba_kernel(add_one)
    values = np.zeros(3, np.float32).view(np.recarray)
    kernel(values)
    assert np.asarray(values).tolist() == ONES
    unaligned = np.zeros(13, np.uint8)[1:].view(np.float32)
    assert told(kernel, unaligned) != told(kernel, ROW)
    kernel(unaligned)
    assert unaligned.tolist() == ONES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value"), [("NUMBA_CPU_NAME", "generic"), ("NUMBA_DISABLE_JIT", "1")]
)
def test_settings_of_numba_count(variable: str, value: str, own_folder: Path) -> None:
    """Sums of products are rounded once or twice, as the processor that numba is told has it."""
    (own_folder / "sums.py").write_text(SUMS)
    environment = os.environ | {variable: value, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "sums.py"], env=environment, check=True)


SUMS = """
import numpy as np
from numba import njit
from znni.primitives.cpu.common.native_kernel import NativeKernel

def add_products(a, b, c):
    for i in range(c.size):
        c[i] = a[i] * b[i] + c[i]

options = {"nogil": True, "fastmath": {"contract"}, "_nrt": False}
a, b, c = np.random.default_rng(0).random((3, 999), np.float32)
found, expected = c.copy(), c.copy()
NativeKernel(add_products, **options)(a, b, found)
njit(**options)(add_products)(a, b, expected)
assert np.array_equal(found, expected)
"""
