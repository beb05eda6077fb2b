"""Functions that numba compiles, made only when they are first needed.

Importing numba takes longer than planning with a kept plan. So a decorated function stays as it is
until it is called, or until a kernel that uses it is compiled.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper
from threading import RLock, current_thread, main_thread
from time import perf_counter
from types import CellType, CodeType, FunctionType
from typing import Any

from znni.core.loading import without_collections
from znni.core.system import ASKING_TO_STOP

# Held while a kernel is made.
making = RLock()

_compiled_seconds: list[float] = []


@contextmanager
def compiling() -> Iterator[None]:
    """Note how long kernels are compiled within a ``with`` block.

    Collections of garbage would take an eighth of the time, and find little. Signals wait until
    the end of the block.
    """
    start = perf_counter()
    with _signals_waiting(), without_collections():
        yield
    _compiled_seconds.append(perf_counter() - start)


@contextmanager
def _signals_waiting() -> Iterator[None]:
    """Let handlers of signals wait until the end of a ``with`` block in the main thread.

    LLVM calls functions of numba. Python drops an exception that a handler raises in such a call.
    Then the interrupt is lost, and numba fails for want of what the function would have done.
    """
    if current_thread() is not main_thread():  # handlers run in the main thread alone
        yield
        return
    waiting: list[int] = []
    handlers = {number: signal.getsignal(number) for number in ASKING_TO_STOP}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, _frame: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)


def compiled_seconds() -> float:
    """Return how long this process has compiled kernels that were not kept from earlier runs."""
    return sum(_compiled_seconds)


class LazyKernel:
    """A function that is compiled when it is first needed.

    Args:
        compile_it: the decorator that compiles it.
        options: the decorator's options.

    Attributes:
        options: the decorator's options.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        compile_it: Callable[[Callable[..., Any]], Any],
        options: Mapping[str, Any],
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.options = options
        self._compile = compile_it
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return (self._compiled or self.compiled())(*arguments)

    def compiled(self) -> Any:
        """Return the compiled function, which calls the compiled ones of those that it names."""
        with making:
            if self._compiled is None:
                self._compiled = self._compile(with_compiled(self.function))
            return self._compiled


def with_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function, in which the lazy kernels that it names are compiled."""
    names = function.__globals__
    made = {
        name: used.compiled()
        for name in set(names_in(function.__code__))
        if isinstance(used := names.get(name), LazyKernel)
    }
    cells = tuple(
        CellType(used.compiled()) if isinstance(used := cell.cell_contents, LazyKernel) else cell
        for cell in function.__closure__ or ()
    )
    copy = FunctionType(
        function.__code__, names | made, function.__name__, function.__defaults__, cells
    )
    copy.__qualname__ = function.__qualname__
    return copy


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function's code uses, and the code of functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def lazy_njit(**options: Any) -> Callable[[Callable[..., Any]], LazyKernel]:
    """Return a decorator that compiles as ``numba.njit`` does, when that is first needed."""

    def compiled(function: Callable[..., Any]) -> Any:
        from numba import njit

        return njit(**options)(function)

    return lambda function: LazyKernel(function, compiled, options)


def lazy_intrinsic(**options: Any) -> Callable[[Callable[..., Any]], LazyKernel]:
    """Return a decorator like ``numba.extending.intrinsic``, which is applied when first needed."""

    def compiled(function: Callable[..., Any]) -> Any:
        from numba.extending import intrinsic

        return intrinsic(**options)(function) if options else intrinsic(function)

    return lambda function: LazyKernel(function, compiled, options)
