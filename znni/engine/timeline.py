"""The timeline of a run: a log that says what its processors waited for."""

from __future__ import annotations

import logging
from threading import Lock

from znni.machine.process_age import process_age

# The moment at which all kernels are compiled, and the first block begins.
CAN_COMPUTE = "all processes can compute"

log = logging.getLogger("znni")


class Timeline:
    """Logs when something happens for the first time in a run. Any thread may call it."""

    def __init__(self) -> None:
        self._noting = Lock()
        self._noted: set[str] = set()

    def note(self, what: str) -> None:
        """Log something, and the seconds since the process started, unless it was logged before."""
        if not log.isEnabledFor(logging.INFO):
            return
        with self._noting:
            if what in self._noted:
                return
            self._noted.add(what)
        log.info("after %.2f s: %s", process_age(), what)
