"""Arguments of wrong types: one error of znni's own, before anything begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
import pytest

import znni
from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput


class Sliced(Protocol):
    shape: tuple[int, ...]


class Options(TypedDict, total=False):
    deep: bool
    share: float | None


@checks_types
def takes(
    count: int, *, place: str | Path = "", array: Sliced | None = None, **options: Unpack[Options]
) -> int:
    """Return the number."""
    return count + len(options) + len(str(place)) * (array is None)


@pytest.mark.parametrize("count", [1, np.int16(1), np.uint64(1)])
@pytest.mark.parametrize("deep", [True, False, np.True_, 1])
@pytest.mark.parametrize("share", [None, 1, 0.5, np.float32(2)])
def test_right_types_pass(count: Any, deep: Any, share: Any) -> None:
    assert takes(count, deep=deep, share=share, array=np.zeros(3)) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": "2"}, "count is '2', a str; give an integer"),
        ({"count": 2.0}, r"count is 2.0, a float; give an integer"),
        ({"count": True}, "count is True, a bool; give an integer"),
        ({"count": None}, "count is None, a NoneType; give an integer"),
        ({"count": 2, "deep": "yes"}, "deep is 'yes', a str; give True or False"),
        ({"count": 2, "deep": 2}, "deep is 2, a int; give True or False"),
        ({"count": 2, "share": "1"}, "share is '1', a str; give a number"),
    ],
)
def test_wrong_types_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        takes(**given)


def test_arguments_that_there_are_not_are_errors_of_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        takes()  # type: ignore[call-arg]


VALUES = np.zeros((9, 9, 9), np.uint8)
NET = znni.load_network("n337")


@pytest.mark.parametrize(
    "call",
    [
        lambda: znni.random_weights("n337", 0),  # type: ignore[arg-type]
        lambda: znni.random_weights(NET, "0"),  # type: ignore[arg-type]
        lambda: znni.load_weights("n337", "weights.npz"),  # type: ignore[arg-type]
        lambda: znni.with_window(NET, (8, 8, 8)),  # type: ignore[arg-type]
        lambda: znni.infer(VALUES, NET, VALUES, threshold="0.5"),  # type: ignore[arg-type]
        lambda: znni.infer(VALUES, NET, VALUES, channel=0.5),  # type: ignore[arg-type]
        lambda: znni.infer(VALUES, NET, VALUES, random_seed="0"),  # type: ignore[arg-type]
        lambda: znni.infer(VALUES, NET, VALUES, part=1),  # type: ignore[arg-type]
        lambda: znni.infer(VALUES, NET, VALUES, plan=5),  # type: ignore[arg-type]
        lambda: znni.infer(VALUES, NET, VALUES, threads="2"),  # type: ignore[arg-type]
        lambda: znni.infer_many(5, NET, "out"),  # type: ignore[arg-type]
        lambda: znni.export(VALUES, "out.h5", time="0"),  # type: ignore[arg-type]
        lambda: znni.Inferer(NET, plan="plan.json"),  # type: ignore[arg-type]
        lambda: znni.view("v.h5", "o.h5", stride="2"),  # type: ignore[arg-type]
        lambda: znni.verify("o.h5", voxels="64"),  # type: ignore[arg-type]
        lambda: znni.open_volume("v.h5", channel=0.5),  # type: ignore[arg-type]
    ],
)
def test_public_functions_refuse_wrong_types(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match=r", an? .*; give "):
        call()
