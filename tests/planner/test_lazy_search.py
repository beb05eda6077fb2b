"""A search that begins when it is needed."""

from __future__ import annotations

from dataclasses import fields

from fakes import machine
from small_search import CATALOGUE, LIMIT, NETWORK, OUTPUT, OVERHEAD

from planner.cost_model import BUILT_IN
from planner.exhaustive import Search
from planner.lazy_search import LazySearch, begin
from planner.query import Query


def late() -> LazySearch:
    return LazySearch(NETWORK, OUTPUT, machine(LIMIT), CATALOGUE, OVERHEAD, BUILT_IN, "none", "cpu")


def test_a_lazy_search_finds_what_the_search_finds() -> None:
    search = late()
    assert not search.calls
    found = begin(search).fastest()
    assert search.calls == begin(search).calls > 0
    whole = Search(NETWORK, OUTPUT, machine(LIMIT), CATALOGUE, OVERHEAD, BUILT_IN, "none", "cpu")
    assert begin(whole) is whole
    assert found == whole.fastest()


def test_a_lazy_search_begins_with_all_that_it_was_given() -> None:
    search = late()
    for field in fields(Query):
        assert getattr(search.search, field.name) is getattr(search, field.name)
    assert search.search is search.search
