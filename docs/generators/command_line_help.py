"""The page of the command line, from the help of the program itself."""

from __future__ import annotations

from typer.testing import CliRunner

from znni.cli import app

HEADER = """# Command line

This page is the help of `znni` {version}, as the program prints it.
`znni COMMAND --help` prints the same for one command.

- Sizes of memory are written as `8GiB` or `500MB`.
- Add `--debug` to any command to see its log, and a traceback if it fails.
- [Exit codes](exit-codes.md) tell a script what went wrong.
"""
WIDTH = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "TERM": "dumb"}


def commands() -> list[str]:
    """Return the names of all commands, in the order of the program's help."""
    own = [
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback is not None
    ]
    of_groups = [
        f"{group.name} {command.name}"
        for group in app.registered_groups
        for command in (group.typer_instance.registered_commands if group.typer_instance else ())
    ]
    return own + of_groups


def help_of(*command: str) -> str:
    """Return what ``znni COMMAND --help`` prints.

    Raises:
        RuntimeError: the program has no such command.
    """
    outcome = CliRunner().invoke(app, [*command, "--help"], prog_name="znni", env=WIDTH)
    if outcome.exit_code:
        raise RuntimeError(f"znni {' '.join(command)} --help failed: {outcome.output}")
    return outcome.output.strip()


def command_line_page() -> str:
    """Return the page, with a section for each command."""
    version = CliRunner().invoke(app, ["--version"]).output.split()[-1]
    sections = [_section("znni")]
    sections += [_section(f"znni {command}", *command.split()) for command in commands()]
    return "\n".join([HEADER.format(version=version), *sections])


def _section(title: str, *command: str) -> str:
    return f"## {title}\n\n```text\n{help_of(*command)}\n```\n"
