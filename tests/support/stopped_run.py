"""Run ``znni``, and make something happen after its first block, for tests of the files left.

Run this as ``python stopped_run.py FATE ARGUMENTS...``. The first block prints a line. With
``wait``, no block is computed after it, so that a test can kill the process. With ``limit``, files
may not grow any larger after the first block. With ``fill``, somebody else fills the disk.
"""

from __future__ import annotations

import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fakes import Watched, fake_catalogue

import znni.inference.planning
from znni.cli import main, progress
from znni.plans.primitive import convolved
from znni.volumes.formats.hdf5 import writer as hdf5
from znni.volumes.formats.zarr import writer as zarr

PATCH_SECONDS = 0.1

written: list[bool] = []


def wait(_layer: object) -> None:
    """Take a while, or for ever after the first block."""
    time.sleep(PATCH_SECONDS)
    while written and fate == "wait":
        time.sleep(0.01)


class Fated:
    """Output that meets its fate after its first block."""

    def write(self, *block: Any) -> None:
        super().write(*block)  # type: ignore[misc]
        written.append(True)
        print("block", flush=True)
        if fate == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
        elif fate == "fill":
            with suppress(OSError), Path("disk/filler").open("wb", 0) as filler:
                while True:
                    filler.write(bytes(1024))


class FatedHdf5(Fated, hdf5.Hdf5Output):
    pass


class FatedZarr(Fated, zarr.ZarrOutput):
    pass


if __name__ == "__main__":
    fate = sys.argv.pop(1)
    progress.LINE_EVERY_SECONDS = 10**9  # only errors are told, however slow the machine is
    slow = Watched("conv", convolved, before=wait)
    znni.inference.planning.catalogue = lambda _: fake_catalogue(slow)  # type: ignore[assignment]
    hdf5.Hdf5Output = FatedHdf5  # type: ignore[misc]
    zarr.ZarrOutput = FatedZarr  # type: ignore[misc]
    main()
