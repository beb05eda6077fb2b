"""Fields of classes of options. Each field says how the command line shows and reads its option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from dataclasses import Field

Group = TypeVar("Group")


class Description(NamedTuple):
    """The command line's view of an option.

    Attributes:
        help: the text of the help.
        metavar: the word for the value in the help; None: the name of its type.
        parse: makes the value from a text; None: the command line makes it from the type.
        before: the option that it precedes in the help; empty: its place is that of its field.
    """

    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    before: str = ""


def described(
    default: object,
    help: str,
    *,
    metavar: str | None = None,
    parse: Callable[[str], Any] | None = None,
    before: str = "",
) -> Any:
    """Return a field of a dataclass that describes its option. See ``Description``."""
    about = Description(help, metavar, parse, before)
    return field(default=default, metadata={"described": about})


def description_of(option: Field[Any]) -> Description | None:
    """Return the description of an option, from its field; None if its type has it."""
    return option.metadata.get("described")


def pick(group: type[Group], keywords: Mapping[str, Any]) -> Group:
    """Return the options of a group among keyword arguments.

    Args:
        group: a dataclass of options.
        keywords: values by the names of options, also of other groups.
    """
    names = [each.name for each in fields(group)]  # type: ignore[arg-type]
    return group(**{name: keywords[name] for name in names if name in keywords})
