"""Warnings that are logged once."""

from __future__ import annotations

import logging
from functools import cache

log = logging.getLogger("znni")


@cache
def warn_once(message: str) -> None:
    """Log a warning, unless this process has logged the same before."""
    log.warning("%s", message)
