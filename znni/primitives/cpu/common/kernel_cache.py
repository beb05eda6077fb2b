"""Kernels that are loaded from disk without being emitted again.

Emitting a kernel takes a hundred times as long as loading its machine code. So a file beside the
machine code tells what an emitting function has made of its arguments. The file is named after the
function, the arguments, the code of znni and all on which machine code depends. So no such file is
ever stale.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from znni.core.user_cache import MOST_BYTES_OF_CODE, state_of_source
from znni.core.value_cache import ValueCache
from znni.core.version import PACKAGE
from znni.primitives.cpu.common import machine_code
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.phases import PhaseKernel

# Known before any emitter is imported. So a kernel is never of older code than this says.
_SOURCE = state_of_source(PACKAGE)

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made", Kernel, PhaseKernel)


class _Emitted(NamedTuple):
    """A kernel as another process emitted it.

    Attributes:
        name: the name of the function.
        file: the name of the file with its machine code.
        arguments: the names of its arguments.
        phase: the names of the phase's arguments; None if the kernel is of no phase.
    """

    name: str
    file: str
    arguments: tuple[str, ...]
    phase: tuple[str, ...] | None


_EMITTED = ValueCache("kernels", 1, _Emitted, MOST_BYTES_OF_CODE)


def cached_kernel(emit: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Decorate a function that emits a kernel, so that it emits each kernel once on a machine.

    The text of each argument (``repr``) must tell all that the kernel depends on.
    """

    @wraps(emit)
    def found(*arguments: Any, **named: Any) -> Made:
        key = _key(emit, arguments, named)
        known = _EMITTED.load(key)
        kernel = known and _loaded(known)
        if kernel is None:
            kernel = emit(*arguments, **named)
            _EMITTED.store(key, _emitted(kernel))
        return cast("Made", kernel)

    return cast("Callable[Arguments, Made]", cache(found))


def _key(emit: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> object:
    called = f"{emit.__module__}.{emit.__qualname__}{arguments!r}{sorted(named.items())!r}"
    if " at 0x" in called:
        raise TypeError(f"arguments of {emit.__qualname__} need a repr: {arguments}, {named}")
    return called, machine_code.environment(), _SOURCE


def _emitted(kernel: Kernel | PhaseKernel) -> _Emitted:
    inner = kernel.kernel if isinstance(kernel, PhaseKernel) else kernel
    phase = kernel.arguments if isinstance(kernel, PhaseKernel) else None
    return _Emitted(inner.name, inner.file.name, inner.arguments, phase)


def _loaded(known: _Emitted) -> Kernel | PhaseKernel | None:
    """Return a kernel that was emitted before, or None if its machine code is absent."""
    file = machine_code.cache_directory() / known.file
    kernel = machine_code.loaded(known.name, file, known.arguments)
    return kernel if kernel is None or known.phase is None else PhaseKernel(kernel, known.phase)
