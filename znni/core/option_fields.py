"""Fields of classes of options. Each field says how the command line shows and reads its option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, Literal, TypeAlias, TypeVar

Group = TypeVar("Group")
# Headings of the options in a command's help, in their order. The first heading has no more than
# ten options, those that most users need. A class of options names its heading as ``panel``.
Panel: TypeAlias = Literal[
    "Options",
    "Input",
    "One network",
    "Network and windows",
    "Output",
    "Plan and hardware",
    "Many machines",
]


def described(
    default: object,
    text: str,
    *,
    metavar: str | None = None,
    parse: Callable[[str], Any] | None = None,
    before: str = "",
    first: bool = False,
) -> Any:
    """Return a field of a dataclass whose metadata describe its option for the command line.

    Args:
        text: the text of the help.
        metavar: the word for the value in the help; None: the name of its type.
        parse: makes the value from a text; None: the command line makes it from the type.
        before: the option that it precedes in the help; empty: its place is that of its field.
        first: whether most users need it, so that the help shows it before all headings.
    """
    about = {"help": text, "metavar": metavar, "parse": parse, "before": before}
    return field(default=default, metadata={**about, "first": first})


def pick(group: type[Group], keywords: Mapping[str, Any]) -> Group:
    """Return the options of a group among keyword arguments, which may be of several groups."""
    names = [each.name for each in fields(group)]  # type: ignore[arg-type]
    return group(**{name: keywords[name] for name in names if name in keywords})
