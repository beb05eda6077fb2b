"""Results as JSON, with the machine, the date and the command that gave them."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import psutil

from bench.ceilings import AnyCeilings
from znni.core.errors import InvalidInput
from znni.machine.detect import detect_host

Row: TypeAlias = dict[str, Any]
# The kinds of results. A kind says which columns the rows have; it keeps its name, because saved
# files name it. Commands with ``--device`` have two: ``layers`` saves ``layer`` or ``gpu-layers``,
# ``network`` saves ``network`` or ``gpu-networks``. ``exercise`` saves ``gpu-exercise`` or
# ``gpu-memory``, ``ledger`` saves ``ledger`` or ``kills``. Figures of papers that compare a few
# functions are ``evaluations``. Curves of ``paper micro-batches`` are ``engine-curves``. Others are
# named after their command.
Kind: TypeAlias = Literal[
    "borders",
    "case-folder",
    "cases",
    "cluster-scaling",
    "cluster-simulation",
    "default-memory",
    "end-to-end",
    "engine-curves",
    "evaluations",
    "fleet",
    "gpu-chips",
    "gpu-exercise",
    "gpu-layers",
    "gpu-memory",
    "gpu-models",
    "gpu-networks",
    "handing-out",
    "import-families",
    "killed-labels",
    "kills",
    "labels-memory",
    "layer",
    "ledger",
    "machine-plans",
    "many-volumes",
    "micro-batches",
    "models",
    "network",
    "nnunet",
    "phases",
    "predictors",
    "profile",
    "resampling",
    "scaling",
    "seams",
    "search",
    "search-compared",
    "shares",
    "sliding-windows",
    "strategies",
    "sweeps",
    "top-plans",
    "unets",
    "volumes",
    "whole-scan",
    "zarr-libraries",
]

LIBRARIES = (
    "znni", "numpy", "numba", "llvmlite", "pyfftw", "scipy", "torch", "monai", "nnunetv2",
    "pytorch3dunet", "dynamic-network-architectures", "timm", "openvino", "onnxruntime",
    "cupy-cuda13x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "h5py", "zarr", "numcodecs",
    "tensorstore", "distributed",
)  # fmt: skip


# Results that were measured under different ones of these are never joined.
SAME = ("machine", "libraries")


@dataclass(frozen=True)
class Record:
    """Results of one command.

    Attributes:
        kind: which columns the rows have.
        rows: measurements by name of the quantity, in SI units unless the name says otherwise.
        about: command, revision, date, machine, libraries and measured ceilings.
    """

    kind: Kind
    rows: list[Row]
    about: dict[str, Any]


def save(path: Path, kind: Kind, rows: list[Row], ceilings: Sequence[AnyCeilings]) -> None:
    """Write rows of results with all that is needed to judge and repeat them."""
    write(path, made_here(kind, rows, ceilings))


def made_here(kind: Kind, rows: list[Row], ceilings: Sequence[AnyCeilings]) -> Record:
    """Return results with the command, machine, date and libraries of this process."""
    about = {
        **circumstances("-m", "bench"),
        "ceilings": [asdict(measured) for measured in ceilings],
    }
    return Record(kind, rows, about)


def write(path: Path, results: Record) -> None:
    """Write results as they are."""
    record = {"kind": results.kind, **results.about, "rows": results.rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".partial")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def circumstances(*program: str) -> dict[str, Any]:
    """Return the command, revision, date, machine and libraries of a program of this repository.

    Args:
        program: the arguments of Python that run it, before its own.
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
    """Read back what ``save`` wrote.

    Args:
        path: the file.
        kind: the only one that is accepted; any by default.

    Raises:
        InvalidInput: there is no such file, or it holds no such results.
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


def join(records: Sequence[Record]) -> Record:
    """Join results of several commands: all rows, in order, with all commands and dates.

    Args:
        records: at least one.

    Raises:
        InvalidInput: they are of different kinds, machines or libraries.
    """
    first = records[0]
    for record in records:
        if record.kind != first.kind:
            raise InvalidInput(f"results of {record.kind} and of {first.kind} cannot be joined")
        for name in SAME:
            if record.about[name] != first.about[name]:
                raise InvalidInput(
                    f"results of different {name} cannot be joined: {record.about[name]} and "
                    f"{first.about[name]}"
                )
    every = [record.about for record in records]
    about = {
        **first.about,
        "command": "\n".join(_distinct(one["command"] for one in every)),
        "revision": ", ".join(_distinct(one["revision"] for one in every if one["revision"])),
        "date": " to ".join(_distinct([every[0]["date"], every[-1]["date"]])),
        "ceilings": [ceilings for one in every for ceilings in one["ceilings"]],
    }
    return Record(first.kind, [row for record in records for row in record.rows], about)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


@cache
def revision() -> str | None:
    """Return the repository's commit, marked if code differs from it; None outside a repository.

    It is the commit of the first call, which is before anything is measured. ``git archive`` writes
    its commit into a file, so a copy made by it tells the commit without git.
    """
    if (archived := archived_revision()) is not None:
        return archived
    commit = _git("rev-parse", "--short", "HEAD")
    # Results are not code: a run that saves some as it goes is still one of its commit.
    code = (":/", ":(exclude)results")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return commit and commit + "-dirty" * bool(changed)


def archived_revision() -> str | None:
    """Return the commit that ``git archive`` wrote; None in a checkout."""
    file = Path(__file__).with_name("revision.txt")
    told = file.read_text().strip() if file.exists() else ""
    return told if told and not told.startswith("$") else None


def _git(*arguments: str) -> str | None:
    """Return what git prints about the repository; None without git, or if it prints nothing."""
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
