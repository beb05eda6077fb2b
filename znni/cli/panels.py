"""A command of znni: an option has one value, and help shows options under headings."""

from __future__ import annotations

from copy import copy
from typing import Any, get_args

from typer.core import TyperCommand

from znni.core.errors import InvalidInput
from znni.core.option_fields import Panel

# A command with more options than these shows them under headings.
FEW = 10
FIRST, *_ = HEADINGS = get_args(Panel)


class PanelCommand(TyperCommand):
    """A command that refuses two values of one option, and shows its options under headings.

    They stand under their ``rich_help_panel``. typer groups options only in its help with colours,
    which gives flags a type as if they took a value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the options in a list of arguments.

        Raises:
            InvalidInput: an option that takes one value has two.
        """
        rest = super().parse_args(ctx, [*args])
        every, once = copy(self), list(filter(_takes_one, self.params))
        every.params = [_repeatable(each) if each in once else each for each in self.params]
        given, _, _ = every.make_parser(ctx).parse_args([*args])
        for option in once:
            if len(values := list(dict.fromkeys(given.get(option.name, ())))) > 1:
                raise InvalidInput(
                    f"{'/'.join(option.opts)} is given twice: {values[0]} and {values[1]}; give it "
                    f"once"
                )
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options into the help."""
        options = [param for param in self.get_params(ctx) if param.get_help_record(ctx)]
        arguments = [each for each in options if each.param_type_name == "argument"]
        options = [each for each in options if each not in arguments]
        panels: dict[str, list[Any]] = {name: [] for name in ("Arguments", *HEADINGS)}
        panels["Arguments"] = arguments
        for each in options:
            panel = getattr(each, "rich_help_panel", None) if len(options) > FEW else None
            panels[panel or FIRST].append(each)
        for name, shown in panels.items():
            if shown:
                with formatter.section(name):
                    formatter.write_dl([each.get_help_record(ctx) for each in shown])


def _takes_one(param: Any) -> bool:
    """Return whether a parameter is an option that takes one value."""
    return not (param.param_type_name == "argument" or param.is_flag or param.multiple)


def _repeatable(option: Any) -> Any:
    """Return an option that takes several values."""
    changed = copy(option)
    changed.multiple = True
    return changed
