"""CUDA sources compile without a device, once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from gpu_layers import needs_compiler
from kernel_resources import KERNELS

from znni.core.child_process import command_of, environment
from znni.core.user_cache import write_whole
from znni.machine import cuda_kernels
from znni.machine.cuda import cupy
from znni.machine.nvrtc import (
    compile_offline,
    compiler,
)


@needs_compiler
def test_a_virtual_architecture_gives_what_the_driver_translates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_kernels, "user_cache", lambda: tmp_path)
    file = cuda_kernels.stored.__wrapped__(KERNELS, "compute_80", ("-DWIDTH=64",))
    assert file.suffix == ".ptx"
    assert b".target sm_80" in file.read_bytes()


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names and versions of the installed packages, which a test may change."""
    found = ["numpy-2.4.6", "nvidia_cuda_nvrtc-13.0.1"]
    monkeypatch.setattr(cuda_kernels, "package_folders", lambda: found)
    cuda_kernels._compiler.cache_clear()
    yield found
    cuda_kernels._compiler.cache_clear()


def test_kept_code_is_found_without_loading_the_compiler(
    packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_kernels, "compiler", lambda: pytest.fail("the compiler was loaded"))
    files = set()
    for version in ("13.0.1", "13.0.2"):
        packages[1] = f"nvidia_cuda_nvrtc-{version}"
        cuda_kernels._compiler.cache_clear()
        files.add(cuda_kernels._file(KERNELS, "sm_80", ()))
    assert len(files) == 2


def test_a_compiler_of_the_system_tells_its_version(
    packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del packages[1]
    nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
    monkeypatch.setattr(cuda_kernels, "compiler", lambda: nvrtc)
    assert cuda_kernels._compiler() == (13, 0)


@needs_compiler
def test_compiled_code_is_kept_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_kernels, "user_cache", lambda: tmp_path)
    file = cuda_kernels.stored.__wrapped__(KERNELS, "sm_90a", ("-DWIDTH=32",))
    assert file.read_bytes()[:4] == b"\x7fELF"
    monkeypatch.setattr(cuda_kernels, "compile_offline", lambda *_: pytest.fail("compiled again"))
    assert cuda_kernels.stored.__wrapped__(KERNELS, "sm_90a", ("-DWIDTH=32",)) == file
    assert list(file.parent.iterdir()) == [file]


class OneDevice:
    """CuPy with a device whose modules are the paths of their files."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=0), nvrtc=cupy().cuda.nvrtc)
        self.loaded: list[str] = []
        self.functions: list[str] = []

    def RawModule(self, path: str) -> Any:  # noqa: N802 - CuPy's name
        self.loaded.append(path)
        return SimpleNamespace(get_function=self.function)

    def function(self, name: str) -> Any:
        self.functions.append(name)
        return SimpleNamespace(name=name)


@pytest.fixture
def one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneDevice]:
    """A device of capability 8.0, with an empty cache of kernels in ``tmp_path``."""
    device, caches = OneDevice(), (cuda_kernels._module, cuda_kernels._loaded, cuda_kernels.stored)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda_kernels, "_architecture", lambda: "sm_80")
    monkeypatch.setattr(cuda_kernels, "_waiting", [])
    monkeypatch.setattr(cuda_kernels, "_waiting_kernels", WeakSet())
    for each in caches:
        each.cache_clear()
    compiler()
    monkeypatch.setattr(cuda_kernels, "cupy", lambda: device)
    yield device
    for each in caches:
        each.cache_clear()


ROOM = 4 * cuda_kernels.COMPILER_BYTES


def module_source(number: int) -> str:
    return f'extern "C" __global__ void f(float* x) {{ x[{number}] = 1; }}'


@pytest.mark.slow
@needs_compiler
def test_modules_that_wait_are_compiled_by_processes_and_loaded(
    one_device: OneDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text("raise ImportError")  # a user's folder may have any file
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cuda_kernels, "compile_offline", lambda *_: pytest.fail("compiled here"))
    for number in range(cuda_kernels.MODULES_FOR_PROCESSES):
        cuda_kernels.compiled(module_source(number)).get_function("f")
    assert not one_device.loaded
    cuda_kernels.load_kernels(ROOM)
    files = [str(file) for file in tmp_path.rglob("*.cubin")]
    assert len(files) == cuda_kernels.MODULES_FOR_PROCESSES
    assert sorted(one_device.loaded) == sorted(files)
    cuda_kernels.compiled(module_source(0)).get_function("f")
    cuda_kernels.load_kernels(ROOM)
    assert len(one_device.loaded) == len(files)


@needs_compiler
@pytest.mark.usefixtures("one_device")
def test_a_signal_ends_the_processes_that_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, wait = [], subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes]) -> int:
        started.append(process)
        if len(started) == 1:
            raise KeyboardInterrupt
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    for number in range(cuda_kernels.MODULES_FOR_PROCESSES):
        cuda_kernels.compiled(module_source(number))
    with pytest.raises(KeyboardInterrupt):
        cuda_kernels.load_kernels(ROOM)
    assert not any(Path(f"/proc/{process.pid}").exists() for process in started)
    assert len(set(started)) > 1
    assert not list(tmp_path.rglob("*.cubin"))


@needs_compiler
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("waits", [True, False])
def test_modules_are_compiled_only_for_a_process_that_waits(tmp_path: Path, waits: bool) -> None:
    codes = [(module_source(0), "sm_80", ())]
    number = os.getpid() if waits else os.getppid()
    command = command_of("znni.machine.kernel_compiler", str(number))
    subprocess.run(command, input=pickle.dumps(codes), env=environment(), check=True)
    assert len(list(tmp_path.rglob("*.cubin"))) == waits


@pytest.mark.slow
@needs_compiler
def test_what_processes_could_not_compile_is_told_here(one_device: OneDevice) -> None:
    for number in range(cuda_kernels.MODULES_FOR_PROCESSES):
        cuda_kernels.compiled(module_source(number) + "wrong")
    with pytest.raises(RuntimeError, match="NVRTC cannot compile for sm_80"):
        cuda_kernels.load_kernels(ROOM)
    assert not one_device.loaded


@needs_compiler
@pytest.mark.parametrize(
    ("room", "interpreter"), [(2 * cuda_kernels.COMPILER_BYTES - 1, sys.executable), (ROOM, "")]
)
def test_without_room_or_processes_modules_are_compiled_here(
    one_device: OneDevice, monkeypatch: pytest.MonkeyPatch, room: int, interpreter: str
) -> None:
    compiled_here, compile_it = [], cuda_kernels.compile_offline
    monkeypatch.setattr(sys, "executable", interpreter)
    monkeypatch.setattr(
        cuda_kernels,
        "compile_offline",
        lambda *code: compiled_here.append(code) or compile_it(*code),
    )
    for number in range(cuda_kernels.MODULES_FOR_PROCESSES):
        cuda_kernels.compiled(module_source(number))
    cuda_kernels.load_kernels(room)
    assert len(compiled_here) == len(one_device.loaded) == cuda_kernels.MODULES_FOR_PROCESSES


@pytest.fixture
def others_compile(tmp_path: Path) -> Iterator[None]:
    """Another process that compiles, from the view of this one."""
    folder = tmp_path / "znni" / "kernels"
    folder.mkdir(parents=True)
    with (folder / "lock").open("ab") as lock:
        flock(lock, LOCK_EX)
        yield


@needs_compiler
@pytest.mark.usefixtures("others_compile")
def test_a_process_waits_while_another_compiles_the_same(
    one_device: OneDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = module_source(0)
    code = compile_offline(source, "sm_80")
    monkeypatch.setattr(cuda_kernels, "compile_offline", lambda *_: pytest.fail("compiled here"))
    cuda_kernels.compiled(source)
    loading = Thread(target=cuda_kernels.load_kernels, args=(ROOM,))
    loading.start()
    loading.join(0.2)
    assert loading.is_alive()
    file = cuda_kernels._file(source, "sm_80", ())
    write_whole(file, code)
    loading.join()
    assert one_device.loaded == [str(file)]


@needs_compiler
@pytest.mark.usefixtures("others_compile")
def test_a_process_waits_not_for_ever_while_another_compiles(
    one_device: OneDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_kernels, "LONGEST_WAIT", 0.1)
    cuda_kernels.compiled(module_source(0))
    cuda_kernels.load_kernels(ROOM)
    assert len(one_device.loaded) == 1


@needs_compiler
def test_without_a_cache_no_process_compiles_in_vain(
    one_device: OneDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    monkeypatch.setattr(cuda_kernels.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    for number in range(cuda_kernels.MODULES_FOR_PROCESSES):
        cuda_kernels.compiled(module_source(number))
    cuda_kernels.load_kernels(ROOM)
    assert len(one_device.loaded) == cuda_kernels.MODULES_FOR_PROCESSES
    assert all(Path(file).read_bytes()[:4] == b"\x7fELF" for file in one_device.loaded)
    assert len(set(one_device.loaded)) == len(one_device.loaded)
    assert caplog.text.count("cannot be written") == 1


@needs_compiler
def test_a_kernel_that_is_called_is_loaded_with_its_shared_memory(one_device: OneDevice) -> None:
    kernel = cuda_kernels.kernel_with_shared(module_source(0), "f", 70_000)
    assert not one_device.loaded
    function = kernel._function
    assert len(one_device.loaded) == 1
    assert (function.name, function.max_dynamic_shared_size_bytes) == ("f", 70_000)


@needs_compiler
def test_kernels_that_wait_are_loaded_once_before_they_are_called(one_device: OneDevice) -> None:
    module = cuda_kernels.compiled(module_source(0))
    first, gone = module.get_function("f"), module.get_function("gone")
    del gone
    cuda_kernels.load_kernels(ROOM)
    assert one_device.functions == ["f"]
    again = cuda_kernels.kernel_with_shared(module_source(0), "f", 70_000)
    cuda_kernels.load_kernels(ROOM)
    assert one_device.functions == ["f", "f"]
    assert again._function.max_dynamic_shared_size_bytes == 70_000
    first.load()
    cuda_kernels.load_kernels(ROOM)
    assert one_device.functions == ["f", "f"]


@needs_compiler
def test_a_cache_that_cannot_be_written_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setattr(cuda_kernels, "user_cache", lambda: in_the_way)
    file = cuda_kernels.stored.__wrapped__(KERNELS, "sm_90a", ("-DWIDTH=32",))
    assert file.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.slow
@needs_compiler
def test_what_a_process_could_not_keep_goes_with_it(tmp_path: Path) -> None:
    """Workers of several GPUs are killed when their work is done."""
    (tmp_path / "file").touch()
    variables = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    code = (
        "import os; from znni.machine.cuda_kernels import stored; "
        f"print(stored({module_source(0)!r}, 'sm_80', ()).stat().st_size, flush=True); "
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(variables)
    )
    assert int(done.stdout) > 0
    assert done.returncode == -9
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.gpu
@pytest.mark.parametrize("capability", ["", "8.0"])
def test_a_gpu_runs_kernels_that_cannot_be_kept(capability: str, tmp_path: Path) -> None:
    """Those for the GPU itself, and those for an older one, which the driver translates."""
    (tmp_path / "file").touch()
    variables = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    if capability:
        variables["ZNNI_GPU_CAPABILITY"] = capability
    code = (
        "from znni.machine.cuda import cupy; "
        "from znni.machine.cuda_kernels import compiled, load_kernels; "
        f"modules = [compiled({KERNELS!r}, (f'-DWIDTH={{width}}',)) for width in (32, 64)]; "
        "kernels = [module.get_function('doubled') for module in modules]; "
        f"load_kernels({ROOM}); "
        "x = cupy().asarray([0, 1, 2, 3], 'float32'); "
        "[kernel((1,), (4,), (x,)) for kernel in kernels]; print(x.tolist())"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(variables)
    )
    assert done.stdout == "[0.0, 4.0, 8.0, 12.0]\n", done.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]
