"""Run ``znni`` in a process that cannot have the memory that its plan promises.

Run this as ``python short_of_memory.py ROOM ARGUMENTS...``. Once the output is open, the process
may map only ROOM MiB more. The quicker of its two primitives for convolutions takes half a GiB of
workspace.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

import psutil
from fakes import Fake, fake_catalogue

import znni.inference.planning
from znni.cli import main
from znni.core.shapes import Vec3
from znni.plans.primitive import convolved
from znni.volumes.formats.hdf5 import writer
from znni.volumes.formats.hdf5.output import Hdf5Output

CATALOGUE = fake_catalogue(
    Fake("quick", convolved, flops=1.0, workspace=512 * 2**20),
    Fake("conv", convolved, flops=1e5),
)


class Limiting(Hdf5Output):
    """Output that limits the process's memory as soon as the output is begun."""

    def begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        super().begin(attributes, patch)
        most = psutil.Process().memory_info().vms + int(room) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    room = sys.argv.pop(1)
    znni.inference.planning.catalogue = lambda _: CATALOGUE  # type: ignore[assignment]
    writer.Hdf5Output = Limiting  # type: ignore[misc]
    main()
