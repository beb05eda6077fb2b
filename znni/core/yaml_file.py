"""Reading and checking YAML files that people write, with errors that name the line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from reprlib import repr as short_repr
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

from znni.core.errors import InvalidInput
from znni.core.nearest import nearest

LARGEST = 2**20  # for a count or an extent: far above any real one, far below any overflow
DEEPEST = 8  # levels of mappings and lists; a network has six
DEEPEST_OF_OTHERS = 16  # levels in files of other software
UNKNOWN_KEY = ("extra_forbidden", "invalid_key")  # pydantic's names; the second: not a string


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer from 1 to ``LARGEST``."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST


def _another(path: Path) -> str:
    """Return what to do if there is no file of a path: the file beside it with a similar name."""
    beside = {it.stem: it for it in path.parent.glob("*.yaml")} if path.parent.is_dir() else {}
    close = nearest(path.stem, beside)
    return f"did you mean {beside[close]}?" if close else "check the path"


def _count(value: object) -> int:
    if not is_count(value):
        raise ValueError(f"give an integer from 1 to {LARGEST}")
    return int(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value or "/" in value:
        raise ValueError("give a name: letters and the like as a string, without /")
    return str(value)


Count = Annotated[int, BeforeValidator(_count)]
Name = Annotated[str, BeforeValidator(_name)]


class Entry(BaseModel):
    """A mapping in a file: its keys are its fields, and other keys are errors.

    A validator's message says what to give instead. The value and its key are put before it.

    Attributes:
        unneeded: keys that users of other software may look for, and what to do without them.
    """

    unneeded: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(extra="forbid")


Checked = TypeVar("Checked", bound=Entry)


class YamlFile:
    """The contents of a file, and the line of each part.

    Args:
        path: path of the file.
        kind: kind of the file in one word, such as ``network``.
        text: contents of the file, if they are already known.

    Raises:
        InvalidInput: there is no such file, or it is not YAML.
    """

    def __init__(self, path: Path, kind: str, text: str | None = None) -> None:
        self.path = path
        self.kind = kind
        known = self._read() if text is None else text
        self._content = _parse_once(path, known)

    def checked(self, model: type[Checked]) -> Checked:
        """Return the contents as a model of their keys.

        Raises:
            InvalidInput: they do not match the model; the error names the line and a remedy.
        """
        if not isinstance(self._content, Mapping):
            fields = model.model_fields.items()
            required = " and ".join(f"{key}:" for key, field in fields if field.is_required())
            raise self.refusal((), f"a {self.kind} is a mapping with {required}")
        try:
            return model.model_validate(self._content)
        except ValidationError as error:
            raise self._explained(model, _first_cause(error.errors())) from None

    def refusal(self, location: Sequence[str | int], problem: str) -> InvalidInput:
        """Return an error with the line of a location, such as ``("layers", 2, "name")``."""
        return InvalidInput(f"{self.path}, line {self._line(location)}: {problem}")

    @contextmanager
    def errors_at(self, *location: str | int) -> Iterator[None]:
        """Give the line of a location to errors within the ``with`` block."""
        try:
            yield
        except InvalidInput as error:
            raise self.refusal(location, str(error)) from None

    def _read(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InvalidInput(
                f"{self.path}: no such {self.kind} file; {_another(self.path)}"
            ) from None
        except UnicodeDecodeError:
            raise InvalidInput(
                f"{self.path}: is not UTF-8 text, as YAML must be; give a {self.kind} file"
            ) from None
        except OSError as error:
            raise InvalidInput(
                f"{self.path}: cannot be read: {error.strerror}; give a {self.kind} file"
            ) from None

    def _line(self, location: Sequence[str | int]) -> int:
        """Return the line, from 1, of the innermost part of a location that the file has."""
        node, line = self._content, 1
        for key in location:
            try:
                node, line = node[key], node.lc.data[key][0] + 1
            except (AttributeError, IndexError, KeyError, TypeError):  # missing, or merged by <<
                break
        return line

    def _explained(self, model: type[Entry], error: ErrorDetails) -> InvalidInput:
        """Return one of pydantic's complaints in our words and with its line."""
        location = error["loc"]
        *parents, last = location
        owner = ".".join(map(str, parents)) or f"the {self.kind}"
        found = f"{'.'.join(map(str, location))} is {short_repr(error['input'])}"
        entry = _innermost(model, parents)
        fields = entry.model_fields
        match error["type"]:
            case "extra_forbidden" if last in entry.unneeded:
                problem = f"unknown key {last!r} in {owner}; {entry.unneeded[str(last)]}"
            case "extra_forbidden" | "invalid_key":
                known = [field.alias or name for name, field in fields.items()]
                close = nearest(str(last), known)
                hint = f"did you mean {close!r}? " if close else ""
                keys = f"{'The' if hint else 'the'} keys are {', '.join(known)}"
                problem = f"unknown key {last!r} in {owner}; {hint}{keys}"
            case "missing":
                problem = f"{owner} lacks the key {last!r}; add it"
            case "literal_error":
                known = list(get_args(fields[str(last)].annotation))
                what = short_repr(error["input"])
                problem = f"unknown {last} {what}; choose one of {', '.join(known)}"
            case "model_type":
                known = list(_innermost(model, location).model_fields)
                problem = f"{found}; give it as keys and values: {', '.join(known)}"
            case "list_type" | "tuple_type" | "too_short":  # lists have plural names
                problem = f"{found}; give a list of one {str(last).removesuffix('s')} or more"
            case _:  # raised by a validator
                problem = f"{found}; {error['msg'].removeprefix('Value error, ')}"
        return self.refusal(location, problem)


def plain_content(path: Path, text: str) -> Any:
    """Return the content of a YAML file of other software, as dicts, lists, texts and numbers.

    Raises:
        InvalidInput: it is not YAML.
    """
    return _parse(path, text, YAML(typ="safe", pure=True), DEEPEST_OF_OTHERS)


@lru_cache(maxsize=16)  # a network may be run again and again
def _parse_once(path: Path, text: str) -> Any:
    """Return the content of a file, whose parts know their lines. It must not be changed."""
    return _parse(path, text, YAML(typ="rt"), DEEPEST)


def _parse(path: Path, text: str, parser: YAML, deepest: int) -> Any:
    try:
        _check_depth(path, text, deepest)
        return parser.load(text)
    except InvalidInput:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidInput(f"{path}{line}: not valid YAML: {error.problem}") from None
    except Exception as error:  # the parser raises errors of many kinds
        raise InvalidInput(f"{path}: not valid YAML: {error}") from None


def _check_depth(path: Path, text: str, deepest: int) -> None:
    """Raise an error for deep nesting before parsing: some of it takes exponential time."""
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > deepest:
            line = event.start_mark.line + 1
            raise InvalidInput(f"{path}, line {line}: more than {deepest} levels; unnest it")


def _first_cause(errors: list[ErrorDetails]) -> ErrorDetails:
    """Return the error to report first: an unknown key, if there is one.

    A misspelt key is unknown and leaves another key missing.
    """
    return min(errors, key=lambda error: error["type"] not in UNKNOWN_KEY)


def _innermost(model: type[Entry], location: Sequence[str | int]) -> type[Entry]:
    """Return the model of the innermost mapping that contains a location."""
    for key in location:
        if field := model.model_fields.get(str(key)):
            model = _entry_in(field.annotation) or model
    return model


def _entry_in(annotation: Any) -> type[Entry] | None:
    """Return the model in an annotation such as ``list[_LayerEntry]`` or ``_ConvEntry | None``."""
    if isinstance(annotation, type) and issubclass(annotation, Entry):
        return annotation
    return next(filter(None, map(_entry_in, get_args(annotation))), None)
