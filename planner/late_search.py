"""A search whose modules are loaded when it begins: a run by a kept plan needs none of them."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, Union

from planner.search_terms import SearchTerms

if TYPE_CHECKING:
    from planner.exhaustive import Search


class LateSearch(SearchTerms):
    """A search that may begin."""

    @cached_property
    def begun(self) -> Search:
        """The search itself."""
        from planner.exhaustive import Search

        return Search(*(getattr(self, field.name) for field in fields(self) if field.init))

    @property
    def calls(self) -> int:
        """The number of prices worked out so far."""
        return self.begun.calls if "begun" in vars(self) else 0


AnySearch: TypeAlias = Union["Search", LateSearch]


def begun(search: AnySearch) -> Search:
    """Return a search that begins now, if it has not begun."""
    return search.begun if isinstance(search, LateSearch) else search
