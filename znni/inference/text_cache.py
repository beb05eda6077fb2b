"""Texts of plans that a command printed before, kept in the user's cache.

``plan_cache`` knows a job again by values: its network, primitives, times. To make these values, a
process loads all modules that plan. Here a job is known again by what these values are made from:
files, options, the machine and installed packages. So the same command needs few modules. The
seconds that runs noted to start, to take a plan and to finish may be others: a kept text tells
those of now.
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
from typing import NamedTuple, get_args

from znni.calibration.cost_file import CostFile
from znni.calibration.phase_notes import Kind, noted_around, noted_cuda, with_noted
from znni.core import version
from znni.core.packages import PRIMITIVES, offers, package_folders
from znni.core.shipped import NETWORKS
from znni.core.user_cache import state_of_source, user_cache
from znni.core.value_cache import load_value, store_value
from znni.machine.busy import slowdown
from znni.machine.cold_pages import warm_bytes
from znni.machine.machine import Machine
from znni.machine.processor import processor_features
from znni.plans.job_seconds import SecondsAround
from znni.plans.plan_text import PlanText

log = logging.getLogger("znni")

# The environment variable that names the folder of plans and texts; ``none`` keeps none.
FOLDER_VARIABLE = "ZNNI_PLANS"
NONE = "none"

# The most bytes of a network's file. Larger ones are models of other libraries.
MOST_BYTES = 2**20

# Beginnings of the environment variables that plans depend on.
VARIABLES = ("ZNNI_", "CUDA_")


class CachedText(NamedTuple):
    """The text of a plan that was printed before.

    Attributes:
        text: the text without the figures that depend on the seconds that runs note.
        around: the seconds beside the run where there are no notes.
        kind: the kind of the plan's runs, whose notes count; None: none count.
    """

    text: PlanText
    around: SecondsAround
    kind: Kind | None

    def __str__(self) -> str:
        """Return the text, with the seconds around a run as they are noted now."""
        if self.kind is None:
            return self.text.around(self.around.noted)
        return self.text.around(with_noted(self.around, self.kind).noted, slowdown())


def plans_folder() -> Path | None:
    """Return the folder of kept plans and texts, or None if none are to be kept."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named == NONE:
        return None
    return Path(named) if named else user_cache() / "plans"


def text_file(
    network: Path, machine: Machine, asked: object, *, exact: bool = False
) -> Path | None:
    """Return the file of a plan's text. Its name is a hash of all that the text depends on.

    Args:
        network: the network's file, or its name.
        machine: the machine to plan for.
        asked: the other options of the command. Their ``repr`` is part of what is compared.
        exact: whether the text is kept with all figures.

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
            exact and [noted_around(kind) for kind in get_args(Kind)],
            [noted_cuda(replace(machine, used_gpus=used)) for used in (1, 2) if machine.gpus],
            sorted(it for it in os.environ.items() if it[0].startswith(VARIABLES)),
            package_folders(),
            [it.state for it in offers(PRIMITIVES)],
            sys.version,
            version.__version__,
            *map(state_of_source, version.SOURCES),
        ]
    except OSError:
        return None
    return folder / f"{sha256(repr(parts).encode()).hexdigest()[:32]}.txt"


def _state(path: Path) -> object:
    """Return a file's path, size and time, which change if it is written; None without a file."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return str(path), about.st_size, about.st_mtime_ns


def cached_text(file: Path) -> str | None:
    """Return the text in a file as of now; None if there is none, or if it is damaged."""
    text = load_value(file, object)
    if not isinstance(text, CachedText | str):
        return None
    log.info("the text is kept from an earlier command: %s", file)
    return str(text)


def store_text(file: Path, text: CachedText | str) -> None:
    """Keep a text in a file."""
    store_value(file, text)


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
