"""Options that are passed on unchanged have the same names everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import signature

import pytest

from znni.cli.options import Planned, PlannedOptions
from znni.core.options import Choices, PlanOptions
from znni.inference.planning import SearchOptions, search
from znni.inference.request import RunOptions, request


def test_what_a_plan_may_use() -> None:
    assert {field.name for field in fields(Choices)} == set(PlanOptions.__annotations__)
    assert {field.name for field in fields(Planned)} == set(PlannedOptions.__annotations__)


@pytest.mark.parametrize(("options", "taking"), [(RunOptions, request), (SearchOptions, search)])
def test_what_a_run_and_a_search_are_asked_for(
    options: type, taking: Callable[..., object]
) -> None:
    keywords = [
        one for one in signature(taking).parameters.values() if one.kind is one.KEYWORD_ONLY
    ]
    own = set(options.__annotations__) - set(PlanOptions.__annotations__)
    assert {one.name for one in keywords} == own
    assert all(one.default is not one.empty for one in keywords)
