"""A search that begins when it is needed."""

from __future__ import annotations

from dataclasses import fields

from fakes import machine
from small_search import CATALOGUE, LIMIT, NETWORK, OUTPUT, OVERHEAD

from planner.cost_model import BUILT_IN
from planner.exhaustive import Search
from planner.late_search import LateSearch, begun
from planner.search_terms import SearchTerms


def late() -> LateSearch:
    return LateSearch(NETWORK, OUTPUT, machine(LIMIT), CATALOGUE, OVERHEAD, BUILT_IN, "none", "cpu")


def test_a_late_search_finds_what_the_search_finds() -> None:
    search = late()
    assert not search.calls
    found = begun(search).fastest()
    assert search.calls == begun(search).calls > 0
    whole = Search(NETWORK, OUTPUT, machine(LIMIT), CATALOGUE, OVERHEAD, BUILT_IN, "none", "cpu")
    assert begun(whole) is whole
    assert found == whole.fastest()


def test_a_late_search_begins_with_all_that_it_was_given() -> None:
    search = late()
    for field in fields(SearchTerms):
        assert getattr(search.begun, field.name) is getattr(search, field.name)
    assert search.begun is search.begun
