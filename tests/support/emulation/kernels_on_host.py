"""CUDA kernels compiled by the host's compiler, to be checked without a GPU.

Sources are compiled as they are. Only their inline assembly is replaced by functions that do the
same, and arrays of dynamic shared memory by pointers to it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from shutil import rmtree, which
from tempfile import mkdtemp
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
OPTIONS = (
    "-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC",
    "-shared", "-fvisibility=hidden", "-fno-gnu-unique", "-w",
)  # fmt: skip

HEADER = "cuda_on_host.h"

# Names the folder of what is compiled, in the environment of a run of tests.
FOLDER_VARIABLE = "EMULATED_KERNELS"

# The functions of cuda_on_host.h that do what assembly does.
INSTRUCTIONS = {
    "": "nothing",
    "prefetch.global.L2 [%0];": "nothing",
    "max.NaN.f32 %0, %1, %2;": "max_nan",
    "max.NaN.f16x2 %0, %1, %2;": "max_nan_of_halves",
    "cvt.rn.f16x2.f32 %0, %1, %2;": "halves",
    "cvt.rn.bf16x2.f32 %0, %1, %2;": "bfloats",
    "cvt.rna.tf32.f32 %0, %1;": "tf32",
    "ex2.approx.ftz.f32 %0, %1;": "power_of_two",
    "rcp.approx.ftz.f32 %0, %1;": "reciprocal",
    "mul.rn.f16x2 %0, %1, %2;": "product_of_halves",
    "{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}": (
        "floats_of_halves"
    ),
    "ld.shared.f32 %0, [%1];": "load_shared",
    "{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.f32 [%1], %2;}": "store_if",
    "{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.b32 [%1], %2;}": "store_if",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];": "four_matrices",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];": "two_matrices",
    "cp.async.ca.shared.global [%0], [%1], 4;": "copy<4>",
    "cp.async.ca.shared.global [%0], [%1], 4, %2;": "copy<4>",
    "cp.async.cg.shared.global [%0], [%1], 16;": "copy<16>",
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": "copy<16>",
    "cp.async.commit_group;": "commit",
    "cp.async.wait_group %0;": "wait_group",
    "cp.async.wait_all;": "wait_all",
    "bar.sync %0, %1;": "barrier",
    "mbarrier.init.shared.b64 [%0], %1;": "begin_counting",
    "mbarrier.arrive.shared.b64 _, [%0];": "arrive",
    "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;": "arrive_expecting",
    "{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; "
    "@!done bra again; }": "wait_for_phase",
    "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];": "arrive_after_copies",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];": (
        "copy_of_bytes"
    ),
    "fence.proxy.async.shared::cta;": "nothing",
    "wgmma.fence.sync.aligned;": "together",
    "wgmma.commit_group.sync.aligned;": "together",
    "wgmma.wait_group.sync.aligned 0;": "together",
} | {
    f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{part}.{part}.f32 "
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};": f"product<ptx::{numbers}>"
    for depth, part, numbers in (
        (16, "f16", "Halves16"),
        (16, "bf16", "Bfloats16"),
        (8, "tf32", "Tf32s8"),
    )
}

# Those with a number of operands, or with constants, that depend on the kernel.
OTHERS = (
    (re.compile(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 \d+;"), "nothing({})"),
    (
        re.compile(
            r"\{\.reg \.pred p; setp\.ne\.b32 p, %\d+, 0; wgmma\.mma_async\.sync\.aligned"
            r"\.m64n\d+k16\.f32\.f16\.f16 \{[^}]*\}, %\d+, %\d+, p, 1, 1, 0, 0;\}"
        ),
        "product_of_warpgroup({{{}}})",
    ),
)

_ASM = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SHARED = re.compile(r"extern __shared__\s+(?:__align__\(\d+\)\s+)?(\w+)\s+(\w+)\[\];")
_HEADER = re.compile(r"#include <cuda_\w+\.h>")
_KERNEL = re.compile(
    r'^(?:extern "C" __global__ void|KERNEL_OF_CLUSTERS)\s+(?:__\w+__\([^)]*\)\s*)*(\w+)\s*\(',
    re.MULTILINE,
)

# The kinds of arguments, as ``kinds`` in cuda_on_host.h has them.
KINDS = {"int32": "i", "uint32": "i", "int64": "l", "uint64": "l", "float32": "f", "float64": "d"}

# The shared memory that a block may take without being allowed more.
USUAL_SHARED = 48 * 1024


class Order(NamedTuple):
    """The order in which threads run and copies to shared memory are done.

    Attributes:
        descending: whether the last thread runs first.
        copies_at_once: whether copies are done when they start, else when they are waited for.
    """

    descending: bool = False
    copies_at_once: bool = False


class KernelFailed(Exception):
    """What a kernel did wrong."""


class _Index3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


def compiler() -> str | None:
    """Return the host's C++ compiler, or None."""
    return which("g++")


def folder() -> Path:
    """Return the folder of what the processes of this run of tests compile.

    The first process that asks removes it when it ends. Those that it starts share it.
    """
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = mkdtemp(prefix="znni-emulation-")
        atexit.register(rmtree, os.environ[FOLDER_VARIABLE])
    return Path(os.environ[FOLDER_VARIABLE])


@cache
def runtime() -> ctypes.CDLL:
    """Return the library that runs kernels."""
    options = [option for option in OPTIONS if option != "-fvisibility=hidden"]
    file = _compiled_once("runtime.so", *options, "-O2", str(HERE / "runtime.cpp"))
    library = ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)
    library.allocate.restype = ctypes.c_void_p
    library.allocate.argtypes = [ctypes.c_size_t]
    library.release.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.launch.restype = ctypes.c_char_p
    return library


@cache
def compiled(source: str, options: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Return the library of a module's kernels.

    Args:
        source: CUDA C++.
        options: options for NVRTC that define macros.
    """
    runtime()
    _compile_header()
    name = sha256(repr((source, options)).encode()).hexdigest()[:24]
    arguments = (
        *OPTIONS,
        *options,
        f"-I{folder()}",
        f"-I{HERE}",
        "-Wl,-Bsymbolic",
        "-x",
        "c++",
        "-",
    )
    made = _compiled_once(f"{name}.so", *arguments, source=on_host(source))
    return ctypes.CDLL(str(made))


@cache
def _compile_header() -> None:
    """Compile what all kernels include, which otherwise takes half of the compiler's time."""
    _compiled_once(f"{HEADER}.gch", *OPTIONS, "-x", "c++-header", str(HERE / HEADER))


def _compiled_once(name: str, *arguments: str, source: str = "") -> Path:
    """Return a file that one of the processes of this run compiles, while the others wait."""
    from fcntl import LOCK_EX, flock  # Windows has none, and emulates no kernels

    file = folder() / name
    with file.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if file.exists():
            return file
        command = compiler()
        assert command is not None, "there is no compiler"
        done = subprocess.run(
            [command, *arguments, "-o", str(file)],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the kernel does not compile:\n{done.stderr}")
    return file


def on_host(source: str) -> str:
    """Return C++ for the host, with functions ``invoke_`` and ``kinds_`` for each kernel."""
    names = _KERNEL.findall(source)
    source = _HEADER.sub("", source)
    shared = _SHARED.sub(
        r"\1* const \2 = (\1*)emulation::shared_memory();", _without_assembly(source)
    )
    ends = [
        '\n#define SHOWN extern "C" __attribute__((visibility("default")))\n',
        *(
            f"SHOWN void invoke_{name}(void** given) {{ emulation::call({name}, given); }}\n"
            f"SHOWN const char* kinds_{name}() {{ return emulation::kinds({name}); }}\n"
            for name in names
        ),
    ]
    return f'#include "{HEADER}"\n' + shared + "".join(ends)


def _without_assembly(source: str) -> str:
    """Return a source whose inline assembly became calls of functions."""
    parts, done = [], 0
    for found in _ASM.finditer(source):
        end = _closing(source, found.end())
        parts += [source[done : found.start()], _as_call(source[found.end() : end])]
        done = end + 1
    return "".join((*parts, source[done:]))


def _closing(source: str, at: int) -> int:
    """Return the place of the parenthesis that closes the one before a place."""
    depth = 1
    for place, letter in _outside_strings(source, at):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return place
    raise ValueError("assembly without an end")


def _outside_strings(source: str, at: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the places and letters of a source that are not within a string."""
    while at < len(source):
        if string := _STRING.match(source, at):
            at = string.end()
        else:
            yield at, source[at]
            at += 1


def _as_call(statement: str) -> str:
    """Return the call that does what assembly does.

    Args:
        statement: what stands between the parentheses.
    """
    bounds, depth = [-1], 0
    for at, letter in _outside_strings(statement):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ":" and depth == 0:
            bounds.append(at)
    bounds.append(len(statement))
    sections = [statement[a + 1 : b] for a, b in pairwise(bounds)]
    template = "".join(_STRING.findall(sections[0])).replace("\\n", " ")
    template = " ".join(template.split())
    operands = [operand for section in sections[1:3] for operand in _operands(section)]
    if template in INSTRUCTIONS:
        return f"ptx::{INSTRUCTIONS[template]}({', '.join(operands)})"
    for pattern, call in OTHERS:
        if pattern.fullmatch(template):
            return f"ptx::{call.format(', '.join(operands))}"
    return f'emulation::not_emulated("{template}")'


def _operands(section: str) -> Iterator[str]:
    """Yield the expressions of a list of operands such as ``"=r"(a), "f"(b)``."""
    at = 0
    while found := _STRING.search(section, at):
        begin = section.index("(", found.end()) + 1
        at = _closing(section, begin)
        yield f"({section[begin:at]})"


_launching = Lock()  # the runtime has one block at a time


class Kernel:
    """A kernel that runs on the host, with the interface of CuPy's.

    Args:
        library: the library of its module.
        name: its name.
        order: the order in which threads run.
    """

    def __init__(self, library: ctypes.CDLL, name: str, order: Order) -> None:
        self._name = name
        self._invoke = getattr(library, f"invoke_{name}")
        kinds = getattr(library, f"kinds_{name}")
        kinds.restype = ctypes.c_char_p
        self._kinds: str = kinds().decode()
        self._order = order
        self.max_dynamic_shared_size_bytes = USUAL_SHARED

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[Any, ...],
        shared_mem: int = 0,
    ) -> None:
        """Run the kernel.

        Raises:
            KernelFailed: it was launched wrongly, or it did what a GPU does not allow.
        """
        kinds = "".join(map(_kind, arguments))
        if kinds != self._kinds:
            raise KernelFailed(f"{self._name} takes {self._kinds} and was given {kinds}")
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise KernelFailed(f"{self._name} may not take {shared_mem} bytes of shared memory")
        held = [np.array(_value(argument)) for argument in arguments]
        addresses = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
        with _launching:
            found = runtime().launch(
                self._invoke,
                addresses,
                ctypes.byref(_Index3(*grid, *(1,) * (3 - len(grid)))),
                ctypes.byref(_Index3(*block, *(1,) * (3 - len(block)))),
                ctypes.c_size_t(shared_mem),
                *self._order,
            )
        if found is not None:
            raise KernelFailed(f"{self._name}: {found.decode()}")


def _kind(argument: Any) -> str:
    if hasattr(getattr(argument, "data", None), "ptr"):
        return "p"
    if isinstance(argument, np.ndarray):
        raise KernelFailed("a kernel was given an array of the host")
    return KINDS[np.asarray(argument).dtype.name]


def _value(argument: Any) -> Any:
    """Return an argument as a number: an array's is its address."""
    return np.int64(argument.data.ptr) if _kind(argument) == "p" else argument
