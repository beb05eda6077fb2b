"""Convolutions for which cuDNN has no engine. Later plans do not use cuDNN for them.

cuDNN refuses a convolution only when it builds it on a GPU. A search cannot build every shape that
it considers, because that takes too long. So refusals are kept in the user's cache.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from znni.core.user_cache import keep, user_cache


@cache
def refused() -> frozenset[tuple[str, str]]:
    """Return pairs of a GPU's name and the key of a convolution that was refused there."""
    try:
        return frozenset((device, key) for device, key in json.loads(_file().read_text()))
    except (OSError, ValueError):
        return frozenset()


def refuse(device: str, key: str) -> None:
    """Record that a convolution was refused.

    Args:
        device: the GPU's name.
        key: the text that identifies the convolution.
    """
    known = {*refused(), (device, key)}
    refused.cache_clear()
    keep(_file(), json.dumps(sorted(known)).encode())


def _file() -> Path:
    return user_cache() / "cudnn" / "refused.json"
