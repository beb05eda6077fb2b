"""Arguments as the native functions that numba compiles take them: numbers, one after the other.

An array is ten or more numbers: its owners, its size, where it lies, its extents and its strides. A
tuple is its items. On a change of numba, ``c_types`` is held to the functions that it compiles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

# The kind of each argument: as fine as the types by which numba compiles. The kind of a number is
# its class, that of a tuple its class and the kinds of its items, and that of an array its dtype,
# its number of axes and its layout.
Kinds: TypeAlias = tuple[Any, ...]

# Bits of ``ndarray.flags.num``.
_C_ORDER, _FORTRAN_ORDER, _WRITEABLE = 0x1, 0x2, 0x400

# The owners of an array. A kernel that makes no arrays never looks at them.
_NO_OWNERS = (None, None)

_C_TYPES: dict[str, Any] = {
    "?": ctypes.c_uint8,
    "b": ctypes.c_int8,
    "B": ctypes.c_uint8,
    "h": ctypes.c_int16,
    "H": ctypes.c_uint16,
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}
_LLVM_TYPES = {
    ctypes.c_uint8: "i8",
    ctypes.c_int8: "i8",
    ctypes.c_int16: "i16",
    ctypes.c_uint16: "i16",
    ctypes.c_int32: "i32",
    ctypes.c_uint32: "i32",
    ctypes.c_int64: "i64",
    ctypes.c_uint64: "i64",
    ctypes.c_float: "float",
    ctypes.c_double: "double",
    ctypes.c_void_p: "ptr",
}


def flatten(arguments: Iterable[Any], numbers: list[Any]) -> Kinds:
    """Append the numbers that stand for arguments, and return their kinds.

    Raises:
        TypeError: there is a kind that no kernel takes.
    """
    kinds: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if kind is int or kind is bool or kind is float:
            kinds.append(kind)
            numbers.append(argument)
        elif kind is np.ndarray:
            flags = argument.flags.num
            layout = flags & _C_ORDER or flags & _FORTRAN_ORDER
            kinds.append((argument.dtype, argument.ndim, layout | flags & _WRITEABLE))
            numbers += _NO_OWNERS
            numbers += argument.size, argument.itemsize, argument.__array_interface__["data"][0]
            numbers += argument.shape
            numbers += argument.strides
        elif isinstance(argument, tuple):
            kinds.append((kind, flatten(argument, numbers)))
        elif isinstance(argument, np.generic):
            kinds.append(kind)
            numbers.append(argument.item())
        else:
            raise TypeError(f"a kernel takes numbers, arrays and tuples of them, not {argument!r}")
    return tuple(kinds)


def c_types(kinds: Kinds) -> Iterator[Any]:
    """Yield the types of the numbers that stand for arguments of these kinds."""
    for kind in kinds:
        if isinstance(kind, type):
            yield _C_TYPES[np.dtype(kind).char.replace("l", "q").replace("L", "Q")]
        elif isinstance(kind[0], type):
            yield from c_types(kind[1])
        else:
            owners, address = (ctypes.c_void_p,) * 2, ctypes.c_void_p
            yield from (*owners, ctypes.c_int64, ctypes.c_int64, address)
            yield from (ctypes.c_int64,) * (2 * kind[1])


def llvm_types(types: Iterable[Any]) -> list[str]:
    """Return the names of these types in LLVM IR."""
    return [_LLVM_TYPES[it] for it in types]
