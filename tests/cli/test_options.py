"""Commands that take groups of options."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from znni.cli.options import grouped, helped, only
from znni.core.option_fields import described


@dataclass(frozen=True)
class Size:
    height: int | None = described(None, "How high it is.")
    flat: bool = described(False, "Make it flat.")
    gpus: int | str = described(1, "How many.", metavar="N|all", parse=str)


@dataclass(frozen=True)
class Colour:
    red: float = described(0.5, "How red it is.")
    mixed: bool = described(True, "Mix colours.", before="flat")
    names: list[str] | None = described(
        None, "Names of it.", metavar="A,B", parse=lambda t: t.split(",")
    )


@dataclass
class Plain:
    place: Annotated[Path, typer.Option(help="Where it is.")]


def run(command: Any, *arguments: str) -> Any:
    """Return what a command prints."""
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@grouped
def paint(what: str, *, size: Size, deep: int = 3, colour: Colour) -> None:
    """Paint something."""
    typer.echo(f"{what} {size} {deep} {colour}")


@grouped
def sketch(
    *, size: Size = only("flat", gpus="One is enough."), colour: Colour = helped(red="Redness.")
) -> None:
    typer.echo(f"{size} {colour}")


def test_options_stand_in_place_of_their_group() -> None:
    names = ["what", "height", "mixed", "flat", "gpus", "deep", "red", "names"]
    assert list(signature(paint).parameters) == names
    assert list(signature(sketch).parameters) == ["mixed", "flat", "gpus", "red", "names"]


def test_a_command_gets_groups() -> None:
    assert run(paint, "a").strip() == f"a {Size(gpus='1')} 3 {Colour()}"
    given = (
        "--height",
        "2",
        "--flat",
        "--gpus",
        "all",
        "--no-mixed",
        "--names",
        "x,y",
        "--deep",
        "4",
    )
    wanted = f"a {Size(2, True, 'all')} 4 {Colour(0.5, False, ['x', 'y'])}"
    assert run(paint, "a", *given).strip() == wanted
    assert run(sketch, "--flat").strip() == f"{Size(flat=True, gpus='1')} {Colour()}"


def test_the_help_is_that_of_the_fields_or_of_the_command() -> None:
    shown = run(paint, "--help")
    for text in ("How high it is.", "--gpus N|all", "[default: 1]", "--mixed / --no-mixed"):
        assert text in shown
    assert "--no-flat" not in shown
    other = run(sketch, "--help")
    assert "One is enough." in other
    assert "Redness." in other
    assert "How red" not in other


def test_a_group_may_have_typer_s_own_options() -> None:
    @grouped
    def find(*, plain: Plain) -> None:
        typer.echo(repr(plain))

    assert run(find, "--place", "there").strip() == repr(Plain(Path("there")))
    with pytest.raises(AssertionError, match="Missing option '--place'"):
        run(find)
