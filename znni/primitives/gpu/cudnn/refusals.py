"""Convolutions that cuDNN turned out to have no engine for: plans made later leave them out.

Only cuDNN knows, once it is asked to build one on a GPU, which takes too long to ask of every shape
that a search looks at. So what it refused is kept in the user's cache.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path

from znni.core.user_cache import user_cache

_log = logging.getLogger(__name__)


@cache
def refused() -> frozenset[tuple[str, str]]:
    """The names of GPUs, each with what a convolution that was refused there is told by."""
    try:
        return frozenset((device, key) for device, key in json.loads(_file().read_text()))
    except (OSError, ValueError):
        return frozenset()


def refuse(device: str, key: str) -> None:
    """Keep that a convolution was refused.

    Args:
        device: the GPU's name.
        key: what the convolution is told from others by.
    """
    known = {*refused(), (device, key)}
    refused.cache_clear()
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(sorted(known)))
    except OSError as error:
        _log.info("what cuDNN refused is not kept: %s", error)


def _file() -> Path:
    return user_cache() / "cudnn" / "refused.json"
