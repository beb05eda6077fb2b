"""Kernels that are loaded from disk without being emitted again.

Emitting a kernel takes a hundred times as long as loading its machine code. So a file beside the
machine code tells what an emitting function has made of its arguments. The file is named after the
function, the arguments, the code of znni and all on which machine code depends. So no such file is
ever stale.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from znni.core.user_cache import MOST_BYTES_OF_CODE, keep, kept, state_of_source
from znni.core.version import PACKAGE
from znni.primitives.cpu.common import machine_code
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.phases import PhaseKernel

# Known before any emitter is imported. So a kernel is never of older code than this says.
_SOURCE = state_of_source(PACKAGE)

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made", Kernel, PhaseKernel)


def kept_kernel(emit: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Decorate a function that emits a kernel, so that it emits each kernel once on a machine.

    The text of each argument (``repr``) must tell all that the kernel depends on.
    """

    @wraps(emit)
    def found(*arguments: Any, **named: Any) -> Made:
        entry = machine_code.cache_directory() / f"{_name(emit, arguments, named)}.json"
        kernel = _kept(entry)
        if kernel is None:
            kernel = emit(*arguments, **named)
            keep(entry, json.dumps(_described(kernel)).encode(), MOST_BYTES_OF_CODE)
        return cast("Made", kernel)

    return cast("Callable[Arguments, Made]", cache(found))


def _name(emit: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    told = (
        f"{emit.__module__}.{emit.__qualname__}{arguments!r}{sorted(named.items())!r}\n"
        f"{machine_code.environment()}\n{_SOURCE}"
    )
    if " at 0x" in told:
        raise TypeError(f"arguments of {emit.__qualname__} need a repr: {arguments}, {named}")
    return f"{emit.__name__.strip('_')}-{sha256(told.encode()).hexdigest()[:32]}"


def _described(kernel: Kernel | PhaseKernel) -> dict[str, Any]:
    inner = kernel.kernel if isinstance(kernel, PhaseKernel) else kernel
    return {
        "name": inner.name,
        "file": inner.file.name,
        "arguments": inner.arguments,
        "phase": kernel.arguments if isinstance(kernel, PhaseKernel) else None,
    }


def _kept(entry: Path) -> Kernel | PhaseKernel | None:
    """Return the kernel that a file tells of, or None if file or machine code are absent."""
    content = kept(entry)
    if content is None:
        return None
    try:
        told = json.loads(content)
        name, arguments, phase = told["name"], tuple(told["arguments"]), told["phase"]
        file = entry.with_name(told["file"])
    except (ValueError, KeyError, TypeError):  # damaged
        return None
    kernel = machine_code.loaded(name, file, arguments)
    if kernel is None or phase is None:
        return kernel
    return PhaseKernel(kernel, tuple(phase))
