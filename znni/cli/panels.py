"""The help of a command: options that most users need first, the others under headings."""

from __future__ import annotations

from typing import Any, get_args

from typer.core import TyperCommand

from znni.core.option_fields import Panel

# A command with more options than these shows them under headings.
FEW = 10
FIRST, *_ = HEADINGS = get_args(Panel)


class PanelCommand(TyperCommand):
    """A command whose help groups its options by their ``rich_help_panel``.

    typer groups options only in its help with colours, which gives flags a type as if they took a
    value.
    """

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
