"""znni: sliding-window inference of 3D ConvNets over volumes larger than memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from znni.core.version import __version__ as __version__

if TYPE_CHECKING:
    from znni.cases.api import infer_case, plan_case
    from znni.cases.set_file import is_whole_case
    from znni.cli.progress import show_progress
    from znni.cluster.run import infer_on_cluster
    from znni.core.trace import tracing
    from znni.inference.api import (
        Inferer,
        ZnniError,
        infer,
        load_network,
        load_weights,
        plan,
        random_weights,
        search,
    )
    from znni.inference.dry_run import dry_run
    from znni.inference.exporting import export
    from znni.inference.many import infer_many
    from znni.inference.monai import SlidingWindowInferer
    from znni.inference.network_import import import_network
    from znni.inference.parts import finish
    from znni.inference.pyramids import build_pyramid
    from znni.inference.verify import verify
    from znni.inference.viewing import view
    from znni.inference.viewing.lazy import LazyArray
    from znni.inference.viewing.notebook import show
    from znni.network.network_file import shipped_networks, with_window
    from znni.network.window import Window
    from znni.volumes.locate import open_volume

__all__ = [
    "Inferer",
    "LazyArray",
    "SlidingWindowInferer",
    "Window",
    "ZnniError",
    "build_pyramid",
    "dry_run",
    "export",
    "finish",
    "import_network",
    "infer",
    "infer_case",
    "infer_many",
    "infer_on_cluster",
    "is_whole_case",
    "load_network",
    "load_weights",
    "open_volume",
    "plan",
    "plan_case",
    "random_weights",
    "search",
    "shipped_networks",
    "show",
    "show_progress",
    "tracing",
    "verify",
    "view",
    "with_window",
]

# Modules of the public names that are not in the central module, ``znni.inference.api``.
HOMES = {
    "build_pyramid": "znni.inference.pyramids",
    "dry_run": "znni.inference.dry_run",
    "export": "znni.inference.exporting",
    "SlidingWindowInferer": "znni.inference.monai",
    "finish": "znni.inference.parts",
    "infer_case": "znni.cases.api",
    "infer_many": "znni.inference.many",
    "infer_on_cluster": "znni.cluster.run",
    "import_network": "znni.inference.network_import",
    "is_whole_case": "znni.cases.set_file",
    "LazyArray": "znni.inference.viewing.lazy",
    "open_volume": "znni.volumes.locate",
    "plan_case": "znni.cases.api",
    "shipped_networks": "znni.network.network_file",
    "show": "znni.inference.viewing.notebook",
    "show_progress": "znni.cli.progress",
    "tracing": "znni.core.trace",
    "verify": "znni.inference.verify",
    "view": "znni.inference.viewing",
    "Window": "znni.network.window",
    "with_window": "znni.network.network_file",
}


def __dir__() -> list[str]:
    return ["__version__", *__all__]


def __getattr__(name: str) -> object:
    """Import the library on first use, so that ``znni --help`` answers at once."""
    if name not in __all__:
        raise AttributeError(f"module 'znni' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(HOMES.get(name, "znni.inference.api")), name)
