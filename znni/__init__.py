"""znni: sliding-window inference of 3D ConvNets over volumes larger than memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from znni.api import (
        Inferer,
        ZnniError,
        infer,
        load_network,
        load_weights,
        plan,
        random_weights,
        search,
    )

__version__ = "0.1.0"

__all__ = [
    "Inferer",
    "ZnniError",
    "infer",
    "load_network",
    "load_weights",
    "plan",
    "random_weights",
    "search",
]


def __dir__() -> list[str]:
    return ["__version__", *__all__]


def __getattr__(name: str) -> object:
    """Import the library on first use, so that ``znni --help`` answers at once."""
    if name not in __all__:
        raise AttributeError(f"module 'znni' has no attribute {name!r}")
    import znni.api

    return getattr(znni.api, name)
