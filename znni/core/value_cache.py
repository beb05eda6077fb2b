"""Values of znni's own classes in the user's cache, for later processes.

They are pickled, which is read a hundred times as fast as checked text. Reading makes only values:
dataclasses and tuples of znni, paths, texts, numbers.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path, PosixPath, WindowsPath
from typing import Any, Generic, TypeVar

from znni.core.user_cache import MOST_BYTES, load_checked, store_checked, user_cache

# The packages whose classes a file may name.
OWN = ("znni", "planner")
PATHS = {kind.__name__: kind for kind in (PosixPath, WindowsPath)}

# Errors of reading a class that is gone, that has other fields now, or that is no class of values.
FOREIGN = (pickle.UnpicklingError, ImportError, AttributeError, TypeError)

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
            kind = super().find_class(module, name)
            if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, tuple)):
                return kind
        raise pickle.UnpicklingError(f"{module}.{name} is no class of values")


class _WithoutMemos(pickle.Pickler):
    """Writes values without their cached properties, which may be arrays and are computed again."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a value with cached properties is made; ``pickle`` knows other values."""
        if isinstance(value, type) or not is_dataclass(value):
            return NotImplemented
        own, state = type(value), getattr(value, "__dict__", {})
        memos = {name for name in state if isinstance(getattr(own, name, None), cached_property)}
        if not memos:
            return NotImplemented
        kept = {name: attribute for name, attribute in state.items() if name not in memos}
        return copyreg.__newobj__, (own,), kept  # type: ignore[attr-defined] # pickle knows it


def store_value(path: Path, value: object, most_bytes: int = MOST_BYTES) -> None:
    """Store a value in a file, as ``store_checked``.

    The file's name must differ if the code of the value's classes differs.
    """
    content = io.BytesIO()
    _WithoutMemos(content, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    store_checked(path, content.getvalue(), most_bytes)


def load_value(path: Path, kind: type[Value]) -> Value | None:
    """Return the value in a file; None if there is none of this kind, or if it is damaged."""
    content = load_checked(path)
    if content is None:
        return None
    try:
        found = _Values(io.BytesIO(content)).load()
    except FOREIGN:
        return None
    return found if isinstance(found, kind) else None


@dataclass(frozen=True)
class ValueCache(Generic[Value]):
    """Values of one kind, each in a file of the user's cache.

    Attributes:
        folder: the name of their folder.
        version: the version of their meaning. A process sees only values of its own version.
        kind: their class.
        most_bytes: the bytes that all files of the folder may take.
    """

    folder: str
    version: int
    kind: type[Value]
    most_bytes: int = MOST_BYTES

    def load(self, key: object) -> Value | None:
        """Return a stored value; None if there is none that can be read.

        Args:
            key: all on which the value depends; its ``repr`` tells it apart.
        """
        return load_value(self._file(key), self.kind)

    def store(self, key: object, value: Value) -> None:
        """Store a value.

        Args:
            key: all on which the value depends.
        """
        store_value(self._file(key), value, self.most_bytes)

    def _file(self, key: object) -> Path:
        name = sha256(repr((self.version, key)).encode()).hexdigest()[:32]
        return user_cache() / self.folder / name
