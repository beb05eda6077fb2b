"""Texts on the command line name options as the command line has them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from command_line import refused, znni
from hypothesis import given
from hypothesis import strategies as st

from znni.cli import LOGGED, _ToStderr
from znni.cli.words import on_command_line
from znni.core.errors import PLAN_AGAIN, option

VALUES = st.one_of(st.text("ab0 ,:.'/%()", min_size=1), st.integers(), st.booleans(), st.floats())


def own(name: str, value: Any) -> str:
    """Return an option as the command line has it."""
    both = option(name, value)
    return both[both.index("(--") + 1 : -1]


@given(
    VALUES.filter(lambda value: not isinstance(value, str) or "(" not in value.replace("()", ""))
)
def test_an_option_is_named_as_the_command_line_has_it(value: Any) -> None:
    if str(value).count("(") != str(value).count(")"):
        return
    said = on_command_line(f"it exists; give {option('gpu_memory', value)} or more (of it)")
    assert said == f"it exists; give {own('gpu_memory', value)} or more (of it)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAN_AGAIN, "plan again with znni plan --out"),
        ("weights=znni.random_weights(network, 0) (--random-weights 0)", "--random-weights 0"),
        ("the 2 GiB of ram (--ram) are", "the 2 GiB of --ram are"),
        ("by znni.with_window (--window Z,Y,X of znni infer)", "by --window Z,Y,X of znni infer"),
        (
            "labels=True (--labels) or threshold=0.5 (--threshold 0.5)",
            "--labels or --threshold 0.5",
        ),
        ("nothing here (of it)", "nothing here (of it)"),
    ],
)
def test_the_forms_of_options(text: str, said: str) -> None:
    assert on_command_line(text) == said


@pytest.mark.usefixtures("small_case", "fake_primitives")
def test_errors_and_warnings_of_a_command() -> None:
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")
    assert znni(*run).code == 0
    assert "out.h5: exists; give --overwrite to" in refused(*run)
    record = logging.LogRecord("znni", logging.WARNING, "", 0, "give %s", ("a=1 (--a 1)",), None)
    assert _ToStderr().format(record) == "give --a 1"


@pytest.mark.parametrize(
    ("name", "library"),
    [("znni", "znni"), ("znni.waits", "znni"), ("matplotlib.font_manager", "matplotlib")],
)
def test_a_message_says_which_library_it_is_of(name: str, library: str) -> None:
    handler = _ToStderr()
    handler.setFormatter(logging.Formatter(LOGGED))
    record = logging.LogRecord(name, logging.INFO, "", 0, "this takes a moment", None, None)
    level = logging.getLevelName(logging.INFO)  # a command changes it for all of the process
    assert handler.format(record) == f"{library}: {level}: this takes a moment"
