"""A plugin of pytest for slow processors, as emulated ones: ``pytest -p few_examples``.

Tests that draw examples draw few.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

FEW = 3
SETTINGS = "_hypothesis_internal_use_settings"  # hypothesis has no public name for it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function = getattr(item, "function", None)
        if drawn := getattr(function, SETTINGS, None):
            few = settings(drawn, max_examples=FEW)
            setattr(function, SETTINGS, few)
