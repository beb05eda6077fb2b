"""Options of the command line, made from the fields of groups of options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from znni.core.described import Description, described, description_of
from znni.core.options import Blend

Command = TypeVar("Command", bound=Callable[..., None])

Net = Annotated[
    Path,
    typer.Option(
        "--net",
        help="Network file (YAML), a name that znni networks lists, or a model: .onnx or .pt2.",
    ),
]
RecheckHelp = typer.Option(
    help="Finished blocks that are compared with their checksums at the end; sample: 100 at random."
)


@dataclass(frozen=True)
class WindowOptions:
    """The windows in which a network is computed."""

    window: str | None = described(
        None,
        "Compute the network in windows of these extents, and blend them. Default: as its "
        "file says.",
        metavar="Z,Y,X",
    )
    overlap: float | None = described(
        None,
        "Share of a window that the next one covers again. Default: as its file says, or 0.5.",
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


class _Some(NamedTuple):
    """A part of a group's options.

    Attributes:
        names: their names.
        helps: other texts of their help, by name.
    """

    names: frozenset[str]
    helps: dict[str, str]


def some(*names: str, **helps: str) -> Any:
    """Return the default of a parameter that takes some options of a group; others have defaults.

    Args:
        names: the names of the options.
        helps: further names, each with a help of this command's own.
    """
    return _Some(frozenset({*names, *helps}), helps)


def grouped(command: Command) -> Command:
    """Decorate a command: the options of its groups stand in its signature in place of each group.

    A group is a parameter whose type is a dataclass of options. From the signature, typer reads
    the options.
    """
    own = signature(command, eval_str=True)
    parameters: list[Parameter] = []
    groups: dict[str, tuple[type[Any], list[Field[Any]]]] = {}
    for name, parameter in own.parameters.items():
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            parameters.append(parameter)
            continue
        part = parameter.default if isinstance(parameter.default, _Some) else None
        chosen = [each for each in fields(group) if part is None or each.name in part.names]
        groups[name] = group, chosen
        parameters += _declared(group, chosen, part.helps if part else {})

    @wraps(command)
    def run(**given: Any) -> None:
        for name, (group, chosen) in groups.items():
            values = {each.name: _parsed(each, given.pop(each.name)) for each in chosen}
            given[name] = group(**values)
        command(**given)

    all_chosen = [each for _, chosen in groups.values() for each in chosen]
    run.__signature__ = own.replace(parameters=_placed(parameters, all_chosen))  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def _declared(
    group: type[Any], chosen: list[Field[Any]], helps: dict[str, str]
) -> Iterator[Parameter]:
    """Yield a parameter for each chosen option of a group, as typer reads it."""
    descriptions = {each.name: description_of(each) for each in chosen}
    typed = {each.name: each.type for each in chosen if not _is_parsed(descriptions[each.name])}
    names = vars(sys.modules[group.__module__])
    types = get_type_hints(SimpleNamespace(__annotations__=typed), names, include_extras=True)
    for each in chosen:
        about = descriptions[each.name]
        default = Parameter.empty if each.default is MISSING else each.default
        kind = types.get(each.name, str | None if default is None else str)
        if about:
            # A switch that is off needs no option that switches it off.
            flags = [f"--{each.name.replace('_', '-')}"] if default is False else []
            text = helps.get(each.name, about.help)
            kind = Annotated[kind, typer.Option(*flags, help=text, metavar=about.metavar)]
        if _is_parsed(about) and default is not None:
            default = str(default)
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _is_parsed(about: Description | None) -> bool:
    """Return whether an option is made from its text, and not by typer."""
    return about is not None and about.parse is not None


def _parsed(option: Field[Any], value: Any) -> Any:
    """Return the value of an option from what typer gives."""
    about = description_of(option)
    return about.parse(value) if about and about.parse and value is not None else value


def _placed(parameters: list[Parameter], options: list[Field[Any]]) -> list[Parameter]:
    """Return parameters in the order of the help."""
    names = [parameter.name for parameter in parameters]
    for option in options:
        about = description_of(option)
        if about and about.before in names:
            names.remove(option.name)
            names.insert(names.index(about.before), option.name)
    return sorted(parameters, key=lambda parameter: names.index(parameter.name))
