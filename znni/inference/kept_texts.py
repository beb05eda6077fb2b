"""Texts of plans that a command printed before, kept in the user's cache.

``kept_plans`` knows a job again by values: its network, primitives, times. To make these values, a
process loads all modules that plan. Here a job is known again by what these values are made from:
files, options, the machine and installed packages. So the same command needs few modules.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import get_args

import planner
import znni
from znni.calibration.cost_file import CostFile
from znni.calibration.phase_notes import Kind, noted_before, noted_cuda
from znni.core.kept_values import sum_of
from znni.core.packages import package_folders
from znni.core.shipped import NETWORKS
from znni.core.user_cache import keep, kept, state_of_source
from znni.inference.kept_files import plans_folder
from znni.machine.cold_pages import warm_bytes
from znni.machine.machine import Machine
from znni.machine.processor import processor_features

log = logging.getLogger("znni")

# The most bytes of a network's file. Larger ones are models of other libraries.
MOST_BYTES = 2**20

# Beginnings of the environment variables that plans depend on.
VARIABLES = ("ZNNI_", "CUDA_")


def text_file(network: Path, machine: Machine, asked: object) -> Path | None:
    """Return the file of a plan's text. Its name differs if anything differs that the text tells.

    Args:
        network: the network's file, or its name.
        machine: the machine to plan for.
        asked: the other options of the command. Their ``repr`` is part of what is compared.

    Returns:
        The file, which need not exist; None if no text is kept for such a network, or at all.

    Raises:
        InvalidInput: the network is only a name, and none of this name comes with znni.
    """
    folder, path = plans_folder(), NETWORKS.found(network)
    try:
        if folder is None or path.stat().st_size > MOST_BYTES:
            return None
        parts = [
            path.read_bytes(),
            str(path),
            machine,
            asked,
            sorted(processor_features().items()),
            warm_bytes(),
            _state(CostFile().path),
            [noted_before(kind) for kind in get_args(Kind)],
            [noted_cuda(replace(machine, used_gpus=used)) for used in (1, 2)],
            sorted(it for it in os.environ.items() if it[0].startswith(VARIABLES)),
            package_folders(),
            sys.version,
            znni.__version__,
            *(state_of_source(Path(package.__path__[0])) for package in (znni, planner)),
        ]
    except OSError:
        return None
    return folder / f"{sha256(repr(parts).encode()).hexdigest()[:32]}.txt"


def _state(path: Path) -> object:
    """Return what changes if a file is written."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return str(path), about.st_size, about.st_mtime_ns


def kept_text(file: Path) -> str | None:
    """Return the text in a file; None if there is none, or if it is damaged."""
    content = kept(file) or b""
    said, _, text = content.partition(b"\n")
    if said != sum_of(text):
        return None
    log.info("the text is kept from an earlier command: %s", file)
    return text.decode()


def keep_text(file: Path, text: str) -> None:
    """Keep a text in a file."""
    content = text.encode()
    keep(file, sum_of(content) + b"\n" + content)


@contextmanager
def warnings_of_znni() -> Iterator[list[str]]:
    """Yield a list to which each warning that znni logs within the ``with`` block is added."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    listener = Listener(logging.WARNING)
    log.addHandler(listener)
    try:
        yield found
    finally:
        log.removeHandler(listener)
