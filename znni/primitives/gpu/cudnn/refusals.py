"""Convolutions for which cuDNN has no engine. Later plans do not use cuDNN for them.

cuDNN refuses a convolution only when it builds it on a GPU. A search cannot build every shape that
it considers, because that takes too long. So refusals are kept in the user's cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from znni.core.user_cache import Notes


@cache
def refused() -> frozenset[tuple[str, str]]:
    """Return pairs of a GPU's name and the key of a convolution that was refused there."""
    return NOTES.kept("refused") or frozenset()


def refuse(device: str, key: str) -> None:
    """Record that a convolution was refused.

    Args:
        device: the GPU's name.
        key: the text that identifies the convolution.
    """
    known = {*refused(), (device, key)}
    refused.cache_clear()
    NOTES.keep("refused", sorted(known))


def _parsed(pairs: list[Any]) -> frozenset[tuple[str, str]]:
    return frozenset((device, key) for device, key in pairs)


NOTES = Notes("cudnn", 1, _parsed)
