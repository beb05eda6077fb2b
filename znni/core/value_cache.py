"""Values of znni's own classes, kept in the user's cache for later processes.

They are pickled, which is read a hundred times as fast as checked text. A file begins with a sum of
its contents. Reading makes only values: dataclasses and tuples of znni, paths, texts, numbers.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import is_dataclass
from hashlib import sha256
from pathlib import Path, PosixPath, WindowsPath
from typing import Any, TypeVar

from znni.core.user_cache import keep, kept

# The packages whose classes a file may name.
OWN = ("znni", "planner")
PATHS = {kind.__name__: kind for kind in (PosixPath, WindowsPath)}

Value = TypeVar("Value")


class _Values(pickle.Unpickler):
    """Reads values, and refuses all other objects."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of values.

        Raises:
            UnpicklingError: it is none.
        """
        package = module.partition(".")[0]
        if package == "pathlib" and name in PATHS:
            return PATHS[name]
        if package in OWN:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, tuple)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no class of values")


def keep_value(path: Path, value: object) -> None:
    """Keep a value in a file. Its name must differ if the code of the value's classes differs."""
    content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    keep(path, sum_of(content) + b"\n" + content)


def kept_value(path: Path, kind: type[Value]) -> Value | None:
    """Return the value in a file; None if there is none of this kind, or if it is damaged."""
    said, _, content = (kept(path) or b"").partition(b"\n")
    if said != sum_of(content):
        return None
    try:
        found = _Values(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, ImportError, AttributeError):  # of a class that is not kept
        return None
    return found if isinstance(found, kind) else None


def sum_of(content: bytes) -> bytes:
    """Return a sum by which a damaged file is known."""
    return sha256(content).hexdigest().encode()
