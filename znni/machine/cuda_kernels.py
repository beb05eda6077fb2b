"""Kernels of the current GPU: each is compiled once, by NVRTC.

Compiled code is kept in the user's cache, under a hash of everything that it depends on.

A module is compiled when one of its kernels is first called, or by ``load_kernels`` together with
all others that are not compiled yet. A process compiles one module at a time, so several modules
are compiled by several processes. Workers of several GPUs need the same modules: one has them
compiled, and the others wait for it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from znni.core import system
from znni.core.child_process import command_of, environment
from znni.core.packages import package_folders
from znni.core.user_cache import MOST_BYTES_OF_CODE, can_store, in_turn, load, store, user_cache
from znni.machine.cuda import compute_capability, cupy, stands_in
from znni.machine.detect import usable_cores
from znni.machine.nvrtc import VIRTUAL, architecture_of, compile_offline, compiler

# Fewer modules than these are compiled by this process: a new process takes as long to start as two
# modules take to compile.
MODULES_FOR_PROCESSES = 4

# Bytes that a compiling process takes; 170 MiB were measured.
COMPILER_BYTES = 256 * 2**20

# Seconds to wait for another process that compiles.
LONGEST_WAIT = 120.0


class Code(NamedTuple):
    """All that a compiled module depends on, except for the version of NVRTC.

    Attributes:
        source: CUDA C++; its kernels are ``extern "C"``.
        architecture: NVRTC's name of the architecture.
        options: options for NVRTC, such as ``-DTILE=32``.
    """

    source: str
    architecture: str
    options: tuple[str, ...]


class KernelModule:
    """A module of kernels for a device, which is compiled and loaded when it is first needed.

    Args:
        device: the number of the device.
    """

    def __init__(self, code: Code, device: int) -> None:
        self.code = code
        self._device = device

    def get_function(self, name: str) -> Kernel:
        """Return a kernel by its name."""
        return Kernel(self, name)

    @property
    def loaded(self) -> Any:
        """The ``cupy.RawModule``, compiled now if it was not."""
        return _loaded(*self.code, self._device)


class Kernel:
    """A kernel of a module.

    Args:
        name: the kernel's name.

    Attributes:
        max_dynamic_shared_size_bytes: the shared memory per block that a launch may request; None:
            as much as every kernel may.
    """

    def __init__(self, module: KernelModule, name: str) -> None:
        self._module = module
        self._name = name
        self.max_dynamic_shared_size_bytes: int | None = None
        _waiting_kernels.add(self)

    def __call__(self, *arguments: Any, **options: Any) -> None:
        """Launch the kernel, as a ``cupy.RawKernel``."""
        self._function(*arguments, **options)

    def load(self) -> None:
        """Load the kernel's code onto the GPU, if that was not done."""
        _ = self._function

    @cached_property
    def _function(self) -> Any:
        function = self._module.loaded.get_function(self._name)
        if self.max_dynamic_shared_size_bytes is not None:
            function.max_dynamic_shared_size_bytes = self.max_dynamic_shared_size_bytes
        return function


# Modules and kernels that were requested, but may not be loaded yet.
_waiting: list[KernelModule] = []
_waiting_kernels: WeakSet[Kernel] = WeakSet()


@cache
def source_beside(module: str, name: str) -> str:
    """Return the CUDA C++ in a file beside a module.

    Args:
        module: the module's ``__file__``.
        name: name of the file.
    """
    return Path(module).with_name(name).read_text()


def compiled(source: str, options: tuple[str, ...] = ()) -> KernelModule:
    """Return a module of kernels for the current device.

    Args:
        source: CUDA C++; its kernels are ``extern "C"``.
        options: options for NVRTC, such as ``-DTILE=32``.
    """
    return _module(Code(source, _architecture(), options), cupy().cuda.Device().id)


def load_kernels(room: int) -> None:
    """Load all requested kernels. First compile all modules that the user's cache does not hold.

    CUDA loads a kernel's code when the kernel is first used, and may then wait for the GPU. So
    without this, the first block would be computed one kernel after the other.

    Processes pass compiled code on in the user's cache. While another process compiles, this one
    waits, so that it need not compile the same modules. If the cache cannot be written, this
    process compiles all.

    Args:
        room: the bytes of the host that processes may take meanwhile. If two processes do not fit,
            this process compiles all.

    Raises:
        RuntimeError: NVRTC does not compile one; the message has its log.
    """
    modules, _waiting[:] = list(_waiting), []
    files = {module.code: _file(*module.code) for module in modules}

    def anew() -> list[Code]:
        return [code for code, file in files.items() if not load(file)]

    if anew() and can_store(_folder()):
        with in_turn(_folder() / "lock", lambda: bool(anew()), LONGEST_WAIT):
            _compile_all(anew(), room)
    for module in modules:
        _ = module.loaded
    while _waiting_kernels:
        _waiting_kernels.pop().load()


def kernel_with_shared(
    source: str, name: str, shared_bytes: int, options: tuple[str, ...] = ()
) -> Kernel:
    """Return a kernel that may use that much shared memory per block.

    Args:
        source: CUDA C++, as for ``compiled``.
        name: name of the kernel.
        shared_bytes: shared memory requested at launch.
        options: options for NVRTC, as for ``compiled``.
    """
    kernel = compiled(source, options).get_function(name)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    return kernel


def _architecture() -> str:
    """Return NVRTC's name of the current device's architecture, or of the one it stands for."""
    capability = compute_capability(cupy().cuda.Device())
    return f"{VIRTUAL}{capability}" if stands_in() else architecture_of(capability)


@cache
def _module(code: Code, device: int) -> KernelModule:
    module = KernelModule(code, device)
    _waiting.append(module)
    return module


@cache
def _loaded(source: str, architecture: str, options: tuple[str, ...], device: int) -> Any:  # noqa: ARG001 - each device loads its own
    return cupy().RawModule(path=str(stored(source, architecture, options)))


@cache
def stored(source: str, architecture: str, options: tuple[str, ...]) -> Path:
    """Return the file of a compiled module: an earlier one, or one made now.

    The result is cached, because the file may be in memory, for this process alone.
    """
    file = _file(source, architecture, options)
    if load(file):
        return file
    code = compile_offline(source, architecture, options)
    return file if store(file, code, MOST_BYTES_OF_CODE) else _in_memory(code)


def _file(source: str, architecture: str, options: tuple[str, ...]) -> Path:
    """Return the file of the user's cache in which a compiled module is kept."""
    key = repr((_compiler(), architecture, options, source))
    suffix = "ptx" if architecture.startswith(VIRTUAL) else "cubin"
    return _folder() / f"{sha256(key.encode()).hexdigest()[:32]}.{suffix}"


@cache
def _compiler() -> object:
    """Return the name and version of the package that NVRTC comes in; else NVRTC's version.

    Loading NVRTC, to ask it, takes some hundredths of a second. Libraries in packages are loaded
    before those of the system.
    """
    packages = [name for name in package_folders() if name.startswith("nvidia_cuda_nvrtc")]
    return packages or compiler().getVersion()


def _folder() -> Path:
    """Return the folder of the user's cache for compiled kernels."""
    return user_cache() / "kernels"


def _compile_all(codes: Sequence[Code], room: int) -> None:
    """Compile modules, by several processes if they are many enough.

    Args:
        codes: the modules.
        room: the bytes of the host that processes may take.
    """
    count = min(len(codes), usable_cores(), room // COMPILER_BYTES)
    if len(codes) >= MODULES_FOR_PROCESSES and count > 1:
        _compile_in_processes(sorted(codes, key=lambda code: -len(code.source)), count)
    for code in codes:
        stored(*code)


def _compile_in_processes(codes: Sequence[Code], count: int) -> None:
    """Compile modules by several processes, which keep the code in the user's cache.

    If a process fails with a module, this process compiles that module when it loads it. An error
    is raised then. If a signal ends the waiting, the processes end, too.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(OSError):
            while len(processes) < count:
                processes.append(
                    subprocess.Popen(
                        command_of("znni.machine.kernel_compiler", str(os.getpid())),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        env=environment(),
                    )
                )
        for i, process in enumerate(processes):
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as given:
                pickle.dump(list(map(tuple, codes[i :: len(processes)])), given)
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _in_memory(code: bytes) -> Path:
    """Return a file in memory that ends with this process, however that ends.

    CUDA takes code from a file. A home or a container that is only read may have no folder for it.
    """
    descriptor = system.new_memory()
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(code)
    return Path(f"/proc/self/fd/{descriptor}")
