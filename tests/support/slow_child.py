"""The process of a run in napari, whose patches take longer, and which tells each block.

Run this as ``python slow_child.py NUMBER``, as the module ``znni.napari.child``. While its folder
has a file ``HOLD``, it computes no block after it has told its first progress.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fakes import Watched, fake_catalogue

import znni.inference.planning
from znni.napari import child
from znni.plans.primitive import convolved

PATCH_SECONDS = 0.1
HOLD = Path("hold")

told: list[bool] = []
tell = child._Progress.tell_rest


def tell_and_note(progress: child._Progress) -> None:
    """Tell the progress, and note that it is told."""
    tell(progress)
    told.append(True)


def wait(_layer: object) -> None:
    """Take a while, or as long as the run is held."""
    time.sleep(PATCH_SECONDS)
    while told and HOLD.exists():
        time.sleep(0.01)


if __name__ == "__main__":
    slow = Watched("conv", convolved, before=wait)
    znni.inference.planning.catalogue = lambda _: fake_catalogue(slow)  # type: ignore[assignment]
    child.TELL_EVERY_SECONDS = 0.0
    child._Progress.tell_rest = tell_and_note  # type: ignore[method-assign]
    child.main(sys.argv[1])
