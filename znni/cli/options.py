"""Options of the command line, made from the fields of groups of options.

The fields are in ``core/plan_options.py`` and ``core/run_options.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cached_property, partial, update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_type_hints

import typer

from znni.core.option_fields import Panel, described
from znni.core.option_types import Blend

Command = TypeVar("Command", bound=Callable[..., None])

# typer's options under the headings of a command's help.
network_option = partial(typer.Option, rich_help_panel="Network and windows")
input_option = partial(typer.Option, rich_help_panel="Input")
output_option = partial(typer.Option, rich_help_panel="Output")
hardware_option = partial(typer.Option, rich_help_panel="Plan and hardware")
machines_option = partial(typer.Option, rich_help_panel="Many machines")

Net = Annotated[
    Path,
    typer.Option(
        "--net",
        help="Network file (YAML), a name that znni networks lists, a model (.onnx or .pt2), or a "
        "results folder of nnU-Net.",
    ),
]
RecheckHelp = machines_option(
    help="Finished blocks that are compared with their checksums at the end; sample: 100 at random."
)


@dataclass(frozen=True)
class WindowOptions:
    """The windows in which a network is computed."""

    panel: ClassVar[Panel] = "Network and windows"

    window: str | None = described(
        None,
        "Compute the network in windows of these extents, and blend them. Default: as its "
        "file says.",
        metavar="Z,Y,X",
    )
    overlap: float | None = described(
        None, "Share of a window that the next one covers again. Default: as its file says, or 0.5."
    )
    blend: Blend | None = described(
        None, "How much the voxels of a window count. Default: as its file says, or gaussian."
    )
    mirror: str | None = described(
        None,
        "Also compute windows mirrored along these axes, and take the mean; none switches "
        "mirroring off. Default: as its file says, or none.",
        metavar="z,y,x|none",
    )


class _Part(NamedTuple):
    """A part of a group's options.

    Attributes:
        names: their names; empty: all.
        helps: other texts of their help, by name.
    """

    names: frozenset[str]
    helps: dict[str, str]


def only(*names: str, **helps: str) -> Any:
    """Return the default of a parameter for some options of a group. Others have defaults."""
    return _Part(frozenset({*names, *helps}), helps)


def helped(**helps: str) -> Any:
    """Return the default of a parameter that takes all options of a group, some with other help."""
    return _Part(frozenset(), helps)


def grouped(command: Command) -> Command:
    """Decorate a command: the options of its groups stand in its signature in place of each group.

    A group is a parameter whose type is a dataclass of options. From the signature, typer reads
    the options.
    """
    return _Grouped(command)  # type: ignore[return-value]


class _Grouped:
    """A command with options in place of groups. They are made for the command that is run."""

    def __init__(self, command: Callable[..., None]) -> None:
        update_wrapper(self, command)
        self._command = command
        self._groups: dict[str, tuple[Any, list[Field[Any]]]] = {}

    @cached_property
    def __signature__(self) -> Signature:
        """The signature that typer reads."""
        own = signature(self._command, eval_str=True)
        parameters: list[Parameter] = []
        for name, parameter in own.parameters.items():
            group, part = parameter.annotation, parameter.default
            if not is_dataclass(group):
                parameters.append(parameter)
                continue
            part = part if isinstance(part, _Part) else _Part(frozenset(), {})
            chosen = [each for each in fields(group) if each.name in part.names or not part.names]
            self._groups[name] = group, chosen
            parameters += _declared(group, chosen, part.helps)
        names = [parameter.name for parameter in parameters]
        for each in (each for _, chosen in self._groups.values() for each in chosen):
            if (before := each.metadata.get("before")) in names:
                names.remove(each.name)
                names.insert(names.index(before), each.name)
        parameters.sort(key=lambda parameter: names.index(parameter.name))
        return own.replace(parameters=parameters)

    def __call__(self, **given: Any) -> None:
        """Run the command with the options that typer gives, as groups."""
        for name, (group, chosen) in self._groups.items():
            values = {each.name: given.pop(each.name) for each in chosen}
            for each in chosen:
                parse = each.metadata.get("parse")
                if parse and values[each.name] is not None:
                    values[each.name] = parse(values[each.name])
            given[name] = group(**values)
        self._command(**given)


def _declared(group: Any, chosen: list[Field[Any]], helps: dict[str, str]) -> Iterator[Parameter]:
    """Yield a parameter for each chosen option of a group, as typer reads it.

    An option without a description has it in its type, as typer's own options have.
    """
    typed = {each.name: each.type for each in chosen if not each.metadata.get("parse")}
    names = vars(sys.modules[group.__module__])
    types = get_type_hints(SimpleNamespace(__annotations__=typed), names, include_extras=True)
    for each in chosen:
        default = Parameter.empty if each.default is MISSING else each.default
        kind = types.get(each.name, str | None)
        if each.name not in types and default is not None:
            kind, default = str, str(default)
        if about := each.metadata:
            # A switch that is off needs no option that switches it off.
            flags = [f"--{each.name.replace('_', '-')}"] if default is False else []
            text = helps.get(each.name, about["help"])
            panel = None if about["first"] else getattr(group, "panel", None)
            kind = Annotated[
                kind,
                typer.Option(*flags, help=text, metavar=about["metavar"], rich_help_panel=panel),
            ]
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
