"""Run ``znni`` with the primitives of tests, and note every block at once.

Run this as ``python killed_at_url.py ARGUMENTS`` in a folder with a case (``command_line.py``).
"""

from __future__ import annotations

from fakes import fake_catalogue

import znni.inference.planning
import znni.volumes.remote_files
from znni.cli import main

if __name__ == "__main__":
    znni.inference.planning.catalogue = lambda _: fake_catalogue()  # type: ignore[assignment]
    znni.volumes.remote_files.MOST_ENTRIES = 1
    main()
