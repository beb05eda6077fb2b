"""Configurations of MONAI bundles, as plain values.

References are followed, and nothing is evaluated.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput
from znni.core.yaml_file import plain_content

# A part of the configuration by its name, such as @network_def::channels. ``$@`` means the same.
REFERENCE = re.compile(r"\$?@(\w+(?:(?:::|#)\w+)*)")
SEPARATOR = re.compile(r"::|#")
TARGET, DISABLED = "_target_", "_disabled_"
LARGEST_FILE = 2**22  # bytes
DEEPEST = 64  # levels of values, with those that references name


@dataclass(frozen=True)
class Expression:
    """A text that MONAI would evaluate, such as ``$torch.device('cpu')``. Here it has no value."""

    text: str

    def __str__(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True)
class Component:
    """A class that MONAI would call.

    Attributes:
        name: the name of the class, without its module.
    """

    name: str
    arguments: Mapping[str, Any]

    def values(self, **defaults: Any) -> tuple[Any, ...]:
        """Return some arguments, in the order of their defaults.

        Raises:
            InvalidInput: one of them is an expression.
        """
        found = {name: self.arguments.get(name, default) for name, default in defaults.items()}
        for name, value in found.items():
            check_plain(value, f"{name} of {self.name}")
        return tuple(found.values())

    def check(self, *ignored: str, **known: tuple[Any, ...]) -> None:
        """Check arguments that are not read.

        Args:
            ignored: arguments that do not change the result.
            known: the values that an argument may have.

        Raises:
            InvalidInput: an argument is unknown, or has another value.
        """
        for name, value in self.arguments.items():
            if name not in ignored and value not in known.get(name, ()):
                raise InvalidInput(
                    f"{self.name} has {name}: {value}, which znni does not do the same way; known "
                    f"is {' or '.join(map(str, known.get(name, ()))) or 'no such argument'}"
                )


def read_config(path: Path) -> Config:
    """Return the configuration in a JSON or YAML file.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE)
        text = content.decode("utf-8")
        held = json.loads(text) if path.suffix == ".json" else plain_content(path, text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path.name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(held, dict):
        raise InvalidInput(f"{path.name} is no configuration of a bundle: it has no names")
    return Config(held, path.name)


@dataclass(frozen=True)
class Config:
    """A configuration."""

    content: Mapping[str, Any]
    name: str

    def part(self, name: str) -> Any:
        """Return a part, in which references are replaced by what they name.

        Raises:
            InvalidInput: a reference names nothing, or refers to itself.
        """
        return self._resolved(self._named(name), 0)

    def _named(self, reference: str) -> Any:
        value: Any = self.content
        for key in SEPARATOR.split(reference):
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (IndexError, KeyError, TypeError, ValueError):
                raise InvalidInput(f"{self.name} has no {reference}") from None
        return value

    def _resolved(self, value: Any, depth: int) -> Any:
        if depth > DEEPEST:
            raise InvalidInput(f"{self.name} has references that refer to themselves")
        if isinstance(value, dict):
            return {str(key): self._resolved(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list):
            return [self._resolved(each, depth + 1) for each in value]
        if not isinstance(value, str):
            return value
        if reference := REFERENCE.fullmatch(value):
            return self._resolved(self._named(reference[1]), depth + 1)
        if value.startswith("$"):
            try:
                return _lists(ast.literal_eval(value[1:].strip()))  # numbers and the like
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return Expression(value)
        return Expression(value) if value.startswith(("%", "@")) else value


def _lists(value: Any) -> Any:
    """Return a value with lists in place of tuples, as in JSON."""
    return [_lists(each) for each in value] if isinstance(value, list | tuple) else value


def component_of(value: Any, what: str) -> Component | None:
    """Return the component that a value describes; None if it is switched off.

    Raises:
        InvalidInput: the value is no component.
    """
    if not isinstance(value, dict) or not isinstance(value.get(TARGET), str):
        raise InvalidInput(f"{what} is {_short(value)}; a component with {TARGET} is expected")
    disabled = value.get(DISABLED, False)
    check_plain(disabled, f"{DISABLED} of {what}")
    if disabled is True or str(disabled).lower() == "true":
        return None
    arguments = {key: each for key, each in value.items() if not key.startswith("_")}
    return Component(value[TARGET].rpartition(".")[2], arguments)


def components_of(value: Any, what: str) -> Iterator[Component]:
    """Yield the components of a list, or of a ``Compose``, in their order."""
    for number, each in enumerate(value if isinstance(value, list) else [value]):
        component = component_of(each, f"{what}[{number}]" if isinstance(value, list) else what)
        if component and component.name == "Compose":
            yield from components_of(component.arguments.get("transforms", []), what)
        elif component:
            yield component


def check_plain(value: Any, what: str) -> None:
    """Check that a value has no expression in it."""
    if isinstance(value, Expression):
        raise InvalidInput(
            f"{what} is the expression {value}, and znni evaluates none; write its value there"
        )
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        check_plain(each, what)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
