"""The version of znni, and the folder of its code."""

from __future__ import annotations

from pathlib import Path

__version__ = "1.0.0"

PACKAGE = Path(__file__).parents[1]

# The folders of all code that plans and outputs depend on.
SOURCES = (PACKAGE, PACKAGE.parent / "planner")
