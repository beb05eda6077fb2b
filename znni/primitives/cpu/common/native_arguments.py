"""Arguments as the native functions that numba compiles take them: numbers, one after the other.

An array is ten or more numbers: its owners, its size, where it lies, its extents and its strides. A
tuple is its items. Whenever numba compiles a function, ``codes`` is compared with its arguments. So
a change of numba is noticed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

# The kind of each argument: as fine as the types by which numba compiles. The kind of a number is
# its class. That of a tuple is its class and the kinds of its items. That of an array is its dtype,
# its number of axes and its flags.
Kinds: TypeAlias = tuple[Any, ...]

# Bits of ``ndarray.flags.num``.
_C_ORDER, _FORTRAN_ORDER, _ALIGNED, _WRITEABLE = 0x1, 0x2, 0x100, 0x400

# The owners of an array. A kernel that makes no arrays never looks at them.
_NO_OWNERS = (0, 0)

# Where an array object has the address of its first element: NumPy's binary interface says so.
# Reading it there takes a tenth of the time of ``__array_interface__``, while other threads wait.
_ADDRESS = object.__basicsize__
_read = ctypes.c_size_t.from_address

# Types of numbers in LLVM IR, by their codes: those of ``struct``, and P for an address.
LLVM_TYPES = {
    "?": "i8",
    "b": "i8",
    "B": "i8",
    "h": "i16",
    "H": "i16",
    "i": "i32",
    "I": "i32",
    "q": "i64",
    "Q": "i64",
    "f": "float",
    "d": "double",
    "P": "ptr",
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
            flags = layout | flags & (_ALIGNED | _WRITEABLE)
            kinds.append((argument.dtype, argument.ndim, flags))
            numbers += _NO_OWNERS
            numbers += argument.size, argument.itemsize, _read(id(argument) + _ADDRESS).value
            numbers += argument.shape
            numbers += argument.strides
        elif isinstance(argument, tuple):
            kinds.append((kind, flatten(argument, numbers)))
        elif isinstance(argument, np.ndarray):  # of a subclass
            kinds += flatten((argument.view(np.ndarray),), numbers)
        elif isinstance(argument, np.generic):
            kinds.append(kind)
            numbers.append(argument.item())
        else:
            raise TypeError(f"a kernel takes numbers, arrays and tuples of them, not {argument!r}")
    return tuple(kinds)


def codes(kinds: Kinds) -> str:
    """Return the codes of the numbers that stand for arguments of these kinds."""
    return "".join(_codes(kinds))


def _codes(kinds: Kinds) -> Iterator[str]:
    for kind in kinds:
        if isinstance(kind, type):
            yield np.dtype(kind).char.replace("l", "q").replace("L", "Q")
        elif isinstance(kind[0], type):
            yield from _codes(kind[1])
        else:  # owners, elements, bytes of one, address, extents, strides
            yield "PPqqP" + "q" * (2 * kind[1])
