"""Kernels that numba compiles once on a machine, and that run without it afterwards.

Importing numba takes longer than planning and building together. So the machine code of a kernel is
kept, for each kind of arguments. LLVM alone loads it. The file's name tells all that the code
depends on: the kernel and its arguments, the code of all kernels, the processor, and the versions
of the compilers. So no file is ever stale, and a damaged one is compiled again.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from znni.core.user_cache import (
    MOST_BYTES_OF_CODE,
    in_turn,
    load_checked,
    state_of_source,
    store_checked,
)
from znni.primitives import cpu
from znni.primitives.cpu.common import machine_code
from znni.primitives.cpu.common.lazy_kernel import (
    LazyKernel,
    compiling,
    making,
    names_in,
    with_compiled,
)
from znni.primitives.cpu.common.native_arguments import LLVM_TYPES, Kinds, codes, flatten

# Known before any kernel is imported. So machine code is never of older code than this says.
_SOURCE = state_of_source(Path(cpu.__path__[0]))

# The function of the machine code that takes all numbers as one block.
_ENTRY = "znni_kernel"

# A file holds the machine code of that function, after its length, and then that of the kernel.
_LENGTH_BYTES = 8

# Seconds to wait for another process that compiles a kernel. Most take one, and few take ten.
LONGEST_WAIT = 60.0

# A file that may change how numba compiles, beside environment variables.
_SETTINGS = Path(".numba_config.yaml")


class NativeKernel(LazyKernel):
    """A function that numba compiles, and that is then called without numba.

    It returns nothing. Calling it releases the interpreter's lock.

    Args:
        options: options of ``numba.njit``.
    """

    def __init__(self, function: Callable[..., None], **options: Any) -> None:
        super().__init__(function, self._by_numba, options)
        self._native: dict[Kinds, Callable[..., None]] = {}

    def __call__(self, *arguments: Any) -> None:
        """Call the machine code for such arguments.

        Raises:
            RuntimeError: the function raised an error.
        """
        numbers: list[Any] = []
        kinds = flatten(arguments, numbers)
        (self._native.get(kinds) or self._ready(kinds, numbers, arguments))(numbers, arguments)

    def _by_numba(self, function: Callable[..., None]) -> Any:
        """Return the function for other kernels to call. Only they can: it takes no objects."""
        from numba import njit

        uncalled = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return njit(**{**self.options, **uncalled})(function)

    def _ready(
        self, kinds: Kinds, numbers: list[Any], arguments: tuple[Any, ...]
    ) -> Callable[..., None]:
        struct.pack(_packed(codes(kinds)), *numbers)  # refuses integers of more than 64 bits
        with making:
            if kinds not in self._native:
                found = self._kept(kinds)
                if found is None:
                    with compiling():
                        found = self._made_in_turn(kinds, arguments)
                self._native[kinds] = found
            return self._native[kinds]

    def _kept(self, kinds: Kinds) -> Callable[..., None] | None:
        content = load_checked(self._file(kinds))
        if content is None:
            return None
        try:
            return _Native(self.function.__qualname__, content, kinds)
        except machine_code.NotLinked:
            return None

    def _made_in_turn(self, kinds: Kinds, arguments: tuple[Any, ...]) -> Callable[..., None]:
        """Load the machine code that another process compiles now, or compile it."""
        file = self._file(kinds)
        lock = file.with_suffix(".lock")
        with in_turn(lock, lambda: not file.exists(), LONGEST_WAIT):
            try:
                return self._kept(kinds) or self._compile_for(kinds, arguments)
            finally:
                with suppress(OSError):
                    lock.unlink()

    def _compile_for(self, kinds: Kinds, arguments: tuple[Any, ...]) -> Callable[..., None]:
        """Compile and keep the machine code, or else compile what only numba can call."""
        from llvmlite import binding
        from numba import njit, typeof

        function = self.compiled()
        if not hasattr(function, "compile"):  # NUMBA_DISABLE_JIT is set
            return lambda _numbers, arguments: function(*arguments)
        types = tuple(map(typeof, arguments))
        function.compile(types)
        made = function.overloads[types]
        library = made.library
        native = library.get_function(made.fndesc.llvm_func_name)
        types_of_code = [str(argument.type) for argument in native.arguments]
        entry = binding.parse_assembly(_entry(native.name, types_of_code, kinds))
        entry.verify()
        try:
            if not library.has_dynamic_globals:  # else it holds addresses of this process
                called = bytes(library.codegen._tm.emit_object(entry))
                _, _, (code, _) = library.serialize_using_object_code()  # numba has compiled it
                content = len(called).to_bytes(_LENGTH_BYTES, "little") + called + code
                native = _Native(self.function.__qualname__, content, kinds)
                store_checked(self._file(kinds), content, MOST_BYTES_OF_CODE)
                return native
        except machine_code.NotLinked:  # it calls a function of numba's own
            pass
        by_numba = njit(**self.options)(with_compiled(self.function))
        return lambda _numbers, arguments: by_numba(*arguments)

    def _file(self, kinds: Kinds) -> Path:
        described = "\n".join((*_key_of_kernel(self), repr(kinds), _environment()))
        key = sha256(described.encode()).hexdigest()[:32]
        return machine_code.cache_directory() / f"{self.function.__name__.strip('_')}-{key}.native"


def _key_of_kernel(kernel: LazyKernel) -> Iterator[str]:
    """Yield text that tells a kernel from others: code, options, and the values around it."""
    function, options = kernel.function, kernel.options
    yield f"{function.__module__}.{function.__qualname__}"
    yield repr([(name, _in_order(options[name])) for name in sorted(options)])
    code, names = function.__code__, function.__globals__
    yield from _key_of_code(code)
    cells = function.__closure__ or ()
    free = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
    around = {name: names[name] for name in set(names_in(code)) if name in names} | free
    for name, value in sorted(around.items()):
        yield name
        yield from _key_of_value(value)


def _key_of_code(code: CodeType) -> Iterator[str]:
    """Yield text that tells the code of a function from others."""
    yield repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _key_of_code(constant)
        else:
            yield repr(_in_order(constant))


def _key_of_value(value: Any) -> Iterator[str]:
    """Yield text that tells a value from others. The code of functions is part of ``_SOURCE``."""
    if isinstance(value, LazyKernel):
        yield from _key_of_kernel(value)
    elif hasattr(value, "__qualname__"):
        yield f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, ModuleType):
        yield value.__name__
    else:
        text = repr(value)
        if " at 0x" in text:
            raise TypeError(f"what kernels take from around them needs a repr: {text}")
        yield text


def _in_order(value: Any) -> Any:
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else value


@cache
def _environment() -> str:
    """Return all that machine code depends on beside the kernel."""
    settings = {name: it for name, it in os.environ.items() if name.startswith("NUMBA_")}
    return repr(
        (
            _SOURCE,
            machine_code.environment(),
            _numba_version(),
            np.__version__,
            sys.version,
            sorted(settings.items()),
            _SETTINGS.read_bytes() if _SETTINGS.is_file() else b"",
        )
    )


def _numba_version() -> bytes:
    """Return the file that tells numba's version, without importing numba."""
    found = importlib.util.find_spec("numba")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("numba is not installed", name="numba")
    return Path(found.origin).with_name("_version.py").read_bytes()


def _entry(name: str, types: list[str], kinds: Kinds) -> str:
    """Return LLVM IR of a function that calls a compiled one with the numbers of a block.

    Args:
        name: the compiled function.
        types: the types of its arguments: addresses of the result and of an error, then numbers.
        kinds: the kinds of the Python arguments.

    Raises:
        TypeError: it takes other numbers than ``flatten`` gives.
    """
    given = codes(kinds)
    wanted = ["ptr", "ptr", *(LLVM_TYPES[code] for code in given)]
    found = ["ptr" if kind.endswith("*") else kind for kind in types]
    if found != wanted:
        raise TypeError(f"numba compiled {name} for {found}, not for {wanted}")
    byte = _address_of("i8", types)
    lines = [
        f'declare i32 @"{name}"({", ".join(types)})',
        f"define i32 @{_ENTRY}({byte} %block) {{",
    ]
    for number, kind in enumerate(types[:2]):
        lines.append(f"  %v{number} = alloca {kind[:-1] if kind.endswith('*') else kind}")
    at = 0
    for number, (code, kind) in enumerate(zip(given, types[2:], strict=True), 2):
        place = _address_of(kind, types)
        lines += [
            f"  %b{number} = getelementptr i8, {byte} %block, i64 {at}",
            f"  %p{number} = bitcast {byte} %b{number} to {place}",
            f"  %v{number} = load {kind}, {place} %p{number}, align 1",
        ]
        at += struct.calcsize(_packed(code))
    values = ", ".join(f"{kind} %v{number}" for number, kind in enumerate(types))
    return "\n".join([*lines, f'  %r = call i32 @"{name}"({values})', "  ret i32 %r", "}"])


def _address_of(kind: str, types: list[str]) -> str:
    """Return the type of an address. Before LLVM 17, it tells what lies there."""
    return f"{kind}*" if types[0].endswith("*") else "ptr"


def _packed(given: str) -> str:
    return "=" + given.replace("P", "Q")


class _Native:
    """A native function in memory.

    Args:
        name: the kernel's name, for errors.
        content: the machine code, as in its file.
        kinds: the kinds of its arguments.

    Raises:
        NotLinked: the machine code needs functions that are not there.
    """

    def __init__(self, name: str, content: bytes, kinds: Kinds) -> None:
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        linked = machine_code.linked(_ENTRY, content[_LENGTH_BYTES:end], content[end:])
        self._name = name
        self._owner = linked.owner
        self._pack = struct.Struct(_packed(codes(kinds))).pack
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)(linked.address)

    def __call__(self, numbers: list[Any], _arguments: tuple[Any, ...]) -> None:
        """Call the function."""
        status = self._function(self._pack(*numbers))
        if status:
            raise RuntimeError(f"the kernel {self._name} ended with status {status}")
