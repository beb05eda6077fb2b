"""Forks of a process with threads."""

from __future__ import annotations

import os
import warnings

import pytest


def forked() -> int:
    """Fork, as ``os.fork``. Newer versions of Python warn if there are threads."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no forks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
