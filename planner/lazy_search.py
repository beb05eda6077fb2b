"""A search whose modules are loaded when it begins: a run by a kept plan needs none of them."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, Union

from planner.query import Query

if TYPE_CHECKING:
    from planner.exhaustive import Search


class LazySearch(Query):
    """A search that may begin."""

    @cached_property
    def search(self) -> Search:
        """The search itself."""
        from planner.exhaustive import Search

        return Search(*(getattr(self, field.name) for field in fields(self) if field.init))

    @property
    def calls(self) -> int:
        """The number of prices worked out so far."""
        return self.search.calls if "search" in vars(self) else 0


AnySearch: TypeAlias = Union["Search", LazySearch]


def begin(search: AnySearch) -> Search:
    """Begin a search, unless it has begun, and return it."""
    return search.search if isinstance(search, LazySearch) else search
