"""The host as the engine sees it."""

from __future__ import annotations

from znni.engine.backends.registry import DeviceBackend, PartRunner, PartToRun


def part_runner(to_run: PartToRun) -> PartRunner:
    """Return a part of a plan, ready to run on the host."""
    from znni.engine.backends.host.part_runner import HostPartRunner  # planning needs no kernels

    return HostPartRunner(to_run)


BACKEND = DeviceBackend(part_runner)
