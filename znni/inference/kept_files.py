"""The folder of plans that were found and printed before."""

from __future__ import annotations

import os
from pathlib import Path

from znni.core.user_cache import user_cache

# The environment variable that names the folder; ``none`` keeps no plans.
VARIABLE = "ZNNI_PLANS"
NONE = "none"


def plans_folder() -> Path | None:
    """Return the folder of kept plans, or None if none are to be kept."""
    named = os.environ.get(VARIABLE)
    if named == NONE:
        return None
    return Path(named) if named else user_cache() / "plans"
