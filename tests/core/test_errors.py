"""Errors that pass from one process to another."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from znni.core.errors import UnusableValues, ZnniError
from znni.core.memory_errors import DoesNotFit, StepDoesNotFit
from znni.core.shapes import Vec3

MADE_WITH: dict[type[ZnniError], tuple[tuple[Any, ...], dict[str, Any]]] = {
    UnusableValues: (("nan at a voxel", Vec3(1, 2, 3)), {}),
    DoesNotFit: (
        (),
        {"needed": 3 << 20, "allowed": 2, "device": "gpu", "layer": "conv", "patch": (1, 2, 3)},
    ),
    StepDoesNotFit: (("reading",), {"needed": 3 << 20, "allowed": 2, "process": 1}),
}


def kinds(of: type[ZnniError] = ZnniError) -> Iterator[type[ZnniError]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


def pickled(error: ZnniError) -> Any:
    return pickle.loads(pickle.dumps(error))


def pickled_as_text(error: ZnniError) -> Any:
    return pickle.loads(pickle.dumps(error, protocol=0))


@pytest.mark.parametrize("copied", [pickled, pickled_as_text, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", list(kinds()))
def test_an_error_is_copied_with_all_that_it_says(
    kind: type[ZnniError], copied: Callable[[ZnniError], ZnniError]
) -> None:
    arguments, named = MADE_WITH.get(kind, (("said",), {}))
    error = kind(*arguments, **named)
    error.add_note("in a run")
    found = copied(error)
    assert type(found) is kind
    assert found is not error
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    assert vars(found)["__notes__"] == ["in a run"]
