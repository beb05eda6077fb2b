"""The help of commands: ten options that most users need, the others under headings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import typer
from command_line import succeeds

from znni.cli import app
from znni.cli.panels import FEW, HEADINGS

PROGRAM: Any = typer.main.get_command(app)
COMMANDS = {name: command for name, command in PROGRAM.commands.items() if name != "nnunet"}
COMMANDS["nnunet predict"] = PROGRAM.commands["nnunet"].commands["predict"]
FIRST_OF_INFER = "net out roi border ram device overwrite labels dry-run h"


def shown(command: str) -> dict[str, list[str]]:
    """Return the options in a command's help, by the heading above them."""
    said = succeeds(*command.split(), "--help")
    sections = re.split(r"^(\w[\w ]*):\n", said, flags=re.MULTILINE)[1:]
    found = zip(sections[::2], sections[1::2], strict=True)
    names = {heading: re.findall(r"^  (-[-\w]+)", text, re.MULTILINE) for heading, text in found}
    return {heading: options for heading, options in names.items() if heading != "Arguments"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_under_one_heading_and_few_stand_first(command: str) -> None:
    headings = shown(command)
    options = [each for each in COMMANDS[command].params if each.param_type_name == "option"]
    wanted = Counter([*(each.opts[0] for each in options), "-h"])
    assert Counter(name for names in headings.values() for name in names) == wanted
    assert list(headings) == [each for each in HEADINGS if each in headings]
    first, *others = headings
    assert first == HEADINGS[0]
    assert len(headings[first]) <= FEW
    assert others or len(wanted) <= FEW


@pytest.mark.parametrize("command", COMMANDS)
def test_the_headings_are_known(command: str) -> None:
    headings = {getattr(each, "rich_help_panel", None) for each in COMMANDS[command].params}
    assert headings - {None} <= {*HEADINGS}


def test_the_first_options_of_infer_are_those_that_most_users_need() -> None:
    names = [name.lstrip("-") for name in shown("infer")["Options"]]
    assert names == FIRST_OF_INFER.split()
