"""Marks of dataclass fields, for the files of plans."""

from dataclasses import Field
from typing import Any

# A file has such a field only if it differs from its default.
UNLESS_DEFAULT = {"unless default": True}


def alias(key: str) -> dict[str, str]:
    """Return the metadata that give a field another name in files. pydantic reads them, too."""
    return {"alias": key}


def file_key(field: Field[Any]) -> str:
    """Return the name that a field has in files."""
    return str(field.metadata.get("alias", field.name))
