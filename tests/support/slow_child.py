"""The process of a run in napari, whose patches take longer, and which tells each block.

Run this as ``python slow_child.py NUMBER``, as the module ``znni.napari.child``.
"""

from __future__ import annotations

import sys
import time

from fakes import Watched, fake_catalogue

import znni.inference.planning
from znni.napari import child
from znni.plans.primitive import convolved

PATCH_SECONDS = 0.1

slow = Watched("conv", convolved, before=lambda _: time.sleep(PATCH_SECONDS))
znni.inference.planning.catalogue = lambda _: fake_catalogue(slow)  # type: ignore[assignment]
child.TELL_EVERY_SECONDS = 0.0
child.main(sys.argv[1])
