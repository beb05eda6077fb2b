"""Functions that numba compiles, made only when they are first needed.

Importing numba takes longer than planning with a kept plan. So a decorated function stays as it is
until it is called, or until a kernel that uses it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import update_wrapper
from threading import RLock
from types import CodeType
from typing import Any

_making = RLock()


class LateKernel:
    """A function that is compiled when it is first needed.

    Args:
        function: the function.
        compile_it: the decorator that compiles it.
    """

    def __init__(
        self, function: Callable[..., Any], compile_it: Callable[[Callable[..., Any]], Any]
    ) -> None:
        update_wrapper(self, function)
        self._function = function
        self._compile = compile_it
        self._made: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return (self._made or self.made())(*arguments)

    def made(self) -> Any:
        """Return the compiled function. First those that it uses take the places of their names."""
        with _making:
            if self._made is None:
                _make_used(self._function)
                self._made = self._compile(self._function)
            return self._made


def _make_used(function: Callable[..., Any]) -> None:
    """Make the late kernels that a function names, in its module and around it."""
    names: dict[str, Any] = function.__globals__
    for name in _names(function.__code__):
        if isinstance(used := names.get(name), LateKernel):
            names[name] = used.made()
    for cell in function.__closure__ or ():
        if isinstance(used := cell.cell_contents, LateKernel):
            cell.cell_contents = used.made()


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function's code uses, and the code of functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def late_njit(**options: Any) -> Callable[[Callable[..., Any]], LateKernel]:
    """Return a decorator that compiles as ``numba.njit`` does, when that is first needed."""

    def compiled(function: Callable[..., Any]) -> Any:
        from numba import njit

        return njit(**options)(function)

    return lambda function: LateKernel(function, compiled)


def late_intrinsic(**options: Any) -> Callable[[Callable[..., Any]], LateKernel]:
    """Return a decorator like ``numba.extending.intrinsic``, which is applied when first needed."""

    def compiled(function: Callable[..., Any]) -> Any:
        from numba.extending import intrinsic

        return intrinsic(**options)(function) if options else intrinsic(function)

    return lambda function: LateKernel(function, compiled)
