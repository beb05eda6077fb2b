"""Options are defined in their groups. Keyword arguments and documents have the same ones."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any, get_type_hints

import pytest

import znni
from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices, PlanOptions
from znni.core.run_options import (
    ExistingOptions,
    InputOptions,
    Options,
    RegionOptions,
    RunKeywords,
    StorageOptions,
    ValueOptions,
)
from znni.inference.planning import SearchOptions, search

GROUPS = (InputOptions, RegionOptions, Choices, ValueOptions, ExistingOptions, StorageOptions)


def typed(group: type) -> dict[str, Any]:
    hints = get_type_hints(group)
    return {each.name: hints[each.name] for each in fields(group)}


def test_keyword_arguments_have_the_types_of_the_groups() -> None:
    assert tuple(get_type_hints(Options).values()) == GROUPS
    options = {name: kind for group in GROUPS for name, kind in typed(group).items()}
    assert options == get_type_hints(RunKeywords)
    assert typed(Choices) == get_type_hints(PlanOptions)


def test_every_option_is_documented() -> None:
    for group in GROUPS:
        for option in fields(group):
            assert option.metadata["help"].endswith(".")
            assert f"``{option.name}``" in (znni.infer.__doc__ or "")


def test_keyword_arguments_become_options() -> None:
    found = Options.from_keywords({"dtype": "uint8", "sharded": True, "threads": 2, "roi": None})
    assert found == Options(
        limits=Choices(threads=2),
        values=ValueOptions("uint8"),
        storage=StorageOptions(sharded=True),
    )
    with pytest.raises(InvalidInput, match="compression is 'lzma'; choose one of zstd, gzip, none"):
        Options.from_keywords({"compression": "lzma"})


def test_what_a_search_is_asked_for() -> None:
    keywords = [
        one for one in signature(search).parameters.values() if one.kind is one.KEYWORD_ONLY
    ]
    own = set(SearchOptions.__annotations__) - set(PlanOptions.__annotations__)
    assert {one.name for one in keywords} == own
    assert all(one.default is not one.empty for one in keywords)
