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
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from znni.core.user_cache import keep, kept, user_cache

_DIGEST_BYTES = 32

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
    _engine: Any  # owns the code

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
    keep(file, sha256(code).digest() + code)
    return _linked(name, file, code, arguments)


def loaded(name: str, file: Path, arguments: tuple[str, ...]) -> Kernel | None:
    """Return the function of that name from a file, or None if that is absent or damaged."""
    code = _stored(file)
    kernel = None if code is None else _linked(name, file, code, arguments)
    return kernel if kernel and kernel.address else None


def _linked(name: str, file: Path, code: bytes, arguments: tuple[str, ...]) -> Kernel:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(name)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(address)
    return Kernel(address, arguments, name, file, function, engine)


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
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.c_size_t.from_buffer(ctypes.cast(function, ctypes.c_void_p)).value


def _target_machine() -> Any:
    """Return a new target machine; each engine owns its own."""
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
    target = _target_machine()
    tuning = llvm.create_pipeline_tuning_options()
    for option, value in _PASS_OPTIONS.items():
        setattr(tuning, option, value)
    passes = llvm.create_pass_builder(target, tuning)
    passes.getModulePassManager().run(module, passes)
    return bytes(target.emit_object(module))


def _stored(file: Path) -> bytes | None:
    """Return the machine code in a file, or None if it is absent or damaged."""
    content = kept(file)
    if content is None:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if sha256(code).digest() == digest else None
