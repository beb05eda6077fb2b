"""A plugin of pytest for slow processors, as emulated ones: ``pytest -p few_examples``.

Tests that draw examples draw few, as slowly as they like.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

FEW = 3
SETTINGS = "_hypothesis_internal_use_settings"  # hypothesis has no public name for it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function = getattr(item, "function", None)
        if drawn := getattr(function, SETTINGS, None):
            few = settings(
                drawn, max_examples=FEW, suppress_health_check=[HealthCheck.too_slow], deadline=None
            )
            setattr(function, SETTINGS, few)
