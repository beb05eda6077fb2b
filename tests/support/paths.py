"""Folders of the project."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
EXAMPLES = ROOT / "examples"
MACHINES = ROOT / "machines"
NETWORKS = ROOT / "networks"
