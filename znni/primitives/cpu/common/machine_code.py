"""Compilation of LLVM IR to machine code, once per machine, with the result kept on disk.

A compiled kernel is stored under the hash of everything that it depends on. These are its IR, the
version and options of LLVM, the processor and its features. A changed generator, an upgrade or
another processor has another hash and another file, so no file is ever stale. Files are written
completely or not at all, so that many processes can share the directory.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from znni.core.user_cache import MOST_BYTES_OF_CODE, load_checked, store_checked, user_cache

_CODE_OPTIONS = {"opt": 3, "codemodel": "jitdefault", "jit": True}

# Loops are unrolled and vectorised by hand, so LLVM must leave them as they are.
_PASS_OPTIONS = {
    "speed_level": 2,
    "loop_unrolling": False,
    "loop_vectorization": False,
    "slp_vectorization": False,
}


@dataclass(frozen=True)
class Kernel:
    """A compiled function.

    Calling it releases the interpreter lock. Arguments are ints: numbers or addresses.

    Attributes:
        address: start of the code; another kernel may call it.
        arguments: names of the arguments.
        name: name of the function.
        file: where its machine code is kept.
    """

    address: int
    arguments: tuple[str, ...]
    name: str
    file: Path
    _function: Any
    _owner: Any  # of the code

    def __call__(self, *arguments: int, **named: int) -> None:
        """Call the function with the first arguments in order and the others by name."""
        rest = self.arguments[len(arguments) :]
        if named.keys() != set(rest):
            raise TypeError(f"arguments by name are {', '.join(rest)}; not {', '.join(named)}")
        self._function(*arguments, *(named[name] for name in rest))


def compiled(name: str, source: str, arguments: tuple[str, ...]) -> Kernel:
    """Return the function of that name in LLVM IR, loaded from disk or compiled now.

    Args:
        name: name of the function.
        source: a module of LLVM IR.
        arguments: names of its arguments, all of 64 bits.
    """
    file = cache_directory() / f"{name}-{_key(source)}.o"
    if found := loaded(name, file, arguments):
        return found
    code = _compile(source)
    store_checked(file, code, MOST_BYTES_OF_CODE)
    return _kernel(linked(name, code), name, file, arguments)


def loaded(name: str, file: Path, arguments: tuple[str, ...]) -> Kernel | None:
    """Return the function of that name from a file, or None if that is absent or damaged."""
    code = load_checked(file)
    if code is None:
        return None
    try:
        return _kernel(linked(name, code), name, file, arguments)
    except NotLinked:
        return None


def _kernel(code: Linked, name: str, file: Path, arguments: tuple[str, ...]) -> Kernel:
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(code.address)
    return Kernel(code.address, arguments, name, file, function, code.owner)


class NotLinked(Exception):
    """Machine code has no function of that name, or calls one that this process does not have."""


class Linked(NamedTuple):
    """A function of machine code in memory.

    Attributes:
        address: start of the function.
        owner: an object that must live as long as the function is called.
    """

    address: int
    owner: Any


_linking = Lock()
_numbers = count()


@cache
def _linker() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(suppress_errors=True)


def linked(name: str, *code: bytes) -> Linked:
    """Bring machine code to memory and return its function of that name.

    Args:
        name: name of the function.
        code: object files, whose functions may call each other.

    Raises:
        NotLinked: there is no such function, or one that it calls is not there.
    """
    library = llvm.JITLibraryBuilder().add_current_process()
    for each in code:
        library.add_object_img(each)
    try:
        with _linking:
            made = library.export_symbol(name).link(_linker(), f"{name}-{next(_numbers)}")
    except RuntimeError as error:
        raise NotLinked(f"{name}: {error}") from None
    return Linked(made[name], made)


def cache_directory() -> Path:
    """Return the user's directory for compiled kernels."""
    return user_cache() / "kernels"


@cache
def is_x86() -> bool:
    """Return whether the processor is of the x86 family, whose streaming stores are unordered."""
    return str(llvm.get_default_triple()).startswith("x86_64")


@cache
def has_wide_registers() -> bool:
    """Return whether the processor has 32 vector registers of 16 floats (AVX-512)."""
    return bool(llvm.get_host_cpu_features().get("avx512f"))


@cache
def yield_address() -> int:
    """Return the address of the system function that yields the processor to other threads.

    The function takes no argument.
    """
    if sys.platform == "win32":
        return address_of(ctypes.WinDLL("kernel32").SwitchToThread)
    return address_of(ctypes.CDLL(None).sched_yield)


def address_of(function: Any) -> int:
    """Return the address of a function of a library."""
    return ctypes.c_size_t.from_buffer(ctypes.cast(function, ctypes.c_void_p)).value


def target_machine() -> Any:
    """Return a new target machine: this processor, with all its features."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, **_CODE_OPTIONS
    )


@cache
def environment() -> str:
    """Return all that machine code depends on beside its IR."""
    features = sorted(llvm.get_host_cpu_features().items())
    return (
        f"{llvmlite.__version__} {llvm.llvm_version_info} {llvm.get_default_triple()} "
        f"{llvm.get_host_cpu_name()} {features} {_CODE_OPTIONS} {_PASS_OPTIONS}"
    )


def _key(source: str) -> str:
    return sha256(f"{environment()}\n{source}".encode()).hexdigest()[:32]


def _compile(source: str) -> bytes:
    module = llvm.parse_assembly(source)
    module.verify()
    target = target_machine()
    tuning = llvm.create_pipeline_tuning_options()
    for option, value in _PASS_OPTIONS.items():
        setattr(tuning, option, value)
    passes = llvm.create_pass_builder(target, tuning)
    passes.getModulePassManager().run(module, passes)
    return bytes(target.emit_object(module))
