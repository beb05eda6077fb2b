"""The host as the engine sees it."""

from __future__ import annotations

from znni.engine.backends.registry import DeviceBackend, Layers, PartToRun


def layers(wanted: PartToRun) -> Layers:
    """Return a part of a plan, ready to run on the host."""
    from znni.engine.backends.host.layers import HostLayers  # planning needs no kernels

    return HostLayers(wanted)


BACKEND = DeviceBackend(layers)
