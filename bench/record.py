"""Results as JSON, with the machine, the date and the command that gave them."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

import psutil

from znni.core.errors import InvalidInput
from znni.machine.detect import detect_host

Row: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal[
    "end-to-end",
    "gpu-exercise",
    "gpu-layers",
    "gpu-memory",
    "gpu-networks",
    "handing-out",
    "kills",
    "layer",
    "ledger",
    "machine-plans",
    "micro-batches",
    "network",
    "profile",
    "scaling",
    "search",
    "shares",
    "strategies",
    "top-plans",
    "volumes",
]

LIBRARIES = (
    "znni", "numpy", "numba", "llvmlite", "pyfftw", "scipy", "torch", "monai",
    "cupy-cuda13x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "h5py", "zarr", "numcodecs",
)  # fmt: skip


class Limits(Protocol):
    """The measured ceilings of a processor."""

    def record(self) -> dict[str, Any]:
        """The figures, for a saved result."""


@dataclass(frozen=True)
class Record:
    """Results of one command.

    Attributes:
        kind: of the command.
        rows: measurements by name of the quantity, in SI units but where the name says otherwise.
        about: command, revision, date, machine, libraries and measured ceilings.
    """

    kind: Kind
    rows: list[Row]
    about: dict[str, Any]


def save(path: Path, kind: Kind, rows: list[Row], ceilings: Sequence[Limits]) -> None:
    """Write rows of results with what is needed to judge and repeat them."""
    about = {
        **circumstances("-m", "bench"),
        "ceilings": [measured.record() for measured in ceilings],
    }
    write(path, Record(kind, rows, about))


def write(path: Path, results: Record) -> None:
    """Write results as they are."""
    record = {"kind": results.kind, **results.about, "rows": results.rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".partial")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def circumstances(*program: str) -> dict[str, Any]:
    """The command, revision, date, machine and libraries of a program of this repository.

    Args:
        program: what Python was given to run it, before its own arguments.
    """
    host = detect_host().host
    return {
        "command": shlex.join(["python", *program, *sys.argv[1:]]),
        "revision": revision(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "processor": host.name,
            "threads": host.threads,
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def load(path: Path, kind: Kind | None = None) -> Record:
    """Read back what ``save`` wrote, of any kind or one.

    Raises:
        InvalidInput: no such file, or not one of these.
    """
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: cannot be read as results: {error}") from None
    known = (kind,) if kind else get_args(Kind)
    if not isinstance(about, dict) or about.get("kind") not in known or "rows" not in about:
        raise InvalidInput(
            f"{path}: holds no results of python -m bench ({', '.join(known)}); measure again"
        )
    return Record(about.pop("kind"), about.pop("rows"), about)


@cache
def revision() -> str | None:
    """The repository's commit, marked where code differs from it; None outside a repository.

    As it is when first asked, which is before anything is measured.
    """
    commit = _git("rev-parse", "--short", "HEAD")
    # Results are no code: a run that saves some as it goes is still one of its commit.
    code = (":/", ":(exclude)results")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return commit and commit + "-dirty" * bool(changed)


def _git(*arguments: str) -> str | None:
    """What git prints of the repository, if anything; None where there is neither."""
    try:
        told = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return told.stdout.strip() or None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
