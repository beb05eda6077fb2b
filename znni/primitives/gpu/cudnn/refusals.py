"""Convolutions for which cuDNN has no engine. Later plans do not use cuDNN for them.

cuDNN refuses a convolution only when it builds it on a GPU. A search cannot build every shape that
it considers, because that takes too long. So refusals are kept in the user's cache.
"""

from __future__ import annotations

from functools import cache

from znni.core.value_cache import ValueCache

# Pairs of a GPU's name and the key of a convolution that was refused there.
NOTES = ValueCache[frozenset[tuple[str, str]]]("cudnn", 1, frozenset)


@cache
def refused() -> frozenset[tuple[str, str]]:
    """Return pairs of a GPU's name and the key of a convolution that was refused there."""
    return NOTES.load("refused") or frozenset()


def refuse(device: str, key: str) -> None:
    """Record that a convolution was refused.

    Args:
        device: the GPU's name.
        key: the text that identifies the convolution.
    """
    known = refused() | {(device, key)}
    refused.cache_clear()
    NOTES.store("refused", known)
