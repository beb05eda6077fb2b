"""Networks as YAML files: read, checked line by line, and turned into a ``Network``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short_repr
from typing import Annotated, Any, TypeGuard, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

from znni.errors import InvalidInput
from znni.network import Activation, Conv, InputScaling, Layer, Network, Pool
from znni.shapes import Vec3

LARGEST = 2**20  # of a count or an extent: far above any network's, far below any overflow
DEEPEST = 8  # levels of mappings and lists; a network has five
UNKNOWN_KEY = ("extra_forbidden", "invalid_key")  # pydantic's names; the second: not a string
FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST


def _count(value: object) -> int:
    if not _is_count(value):
        raise ValueError(f"give an integer from 1 to {LARGEST}")
    return int(value)


def _extents(value: object) -> Vec3:
    """Three positive extents from ``3`` or ``[1, 5, 5]``."""
    three: Sequence[Any] = value if isinstance(value, list | tuple) else [value] * 3
    if len(three) != 3 or not all(map(_is_count, three)):
        raise ValueError(f"give an integer from 1 to {LARGEST}, or three of them as [z, y, x]")
    return Vec3(*map(int, three))


def _finite(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -FLOAT32_MAX <= value <= FLOAT32_MAX
    ):
        raise ValueError("give a finite number")
    return float(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value or "/" in value:
        raise ValueError("give a name: letters and the like as a string, without /")
    return str(value)


def _file_name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("give the name of a file")
    return str(value)


Extents = Annotated[Vec3, BeforeValidator(_extents)]
Finite = Annotated[float, BeforeValidator(_finite)]
Count = Annotated[int, BeforeValidator(_count)]
Name = Annotated[str, BeforeValidator(_name)]
FileName = Annotated[str, BeforeValidator(_file_name)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _ConvEntry(_Entry):
    features: Count
    kernel: Extents
    activation: Activation = "identity"


class _PoolEntry(_Entry):
    window: Extents


class _LayerEntry(_Entry):
    name: Name | None = None
    conv: _ConvEntry | None = None
    pool: _PoolEntry | None = None


class _InputEntry(_Entry):
    scale: Finite = 1.0
    offset: Finite = 0.0


class _NetworkFile(_Entry):
    name: Name
    in_features: Count = 1
    layers: Annotated[list[_LayerEntry], Field(min_length=1)]
    weights: FileName | None = None
    input: _InputEntry = _InputEntry()


def load_network(path: str | Path) -> Network:
    """Read a network file.

    Args:
        path: a YAML file with ``name``, ``in_features``, ``layers`` and, optionally, ``weights``
            (a file beside it) and ``input`` (scale and offset).

    Raises:
        InvalidInput: no such file, or its contents are not a network; names the line.
    """
    path = Path(path)
    document = _read_yaml(path)
    try:
        entries = _NetworkFile.model_validate(document)
    except ValidationError as error:
        raise _explain(path, document, _first_cause(error.errors())) from None
    for index, entry in enumerate(entries.layers):
        if (entry.conv is None) == (entry.pool is None):
            problem = "a layer is either a conv or a pool; give one of the two"
            raise _refusal(path, document, ("layers", index), problem)
    layers = _chain(entries)
    names = [layer.name for layer in layers]
    for index, name in enumerate(names):
        if name in names[:index]:
            problem = f"a layer before it is named {name!r}, too; rename one"
            raise _refusal(path, document, ("layers", index, "name"), problem)
    try:
        return Network(
            name=entries.name,
            in_features=entries.in_features,
            layers=layers,
            scaling=InputScaling(entries.input.scale, entries.input.offset),
            weights=path.parent / entries.weights if entries.weights else None,
        )
    except InvalidInput as error:
        raise _refusal(path, document, ("layers",), str(error)) from None


def _chain(entries: _NetworkFile) -> tuple[Layer, ...]:
    """The layers, each named (conv1, pool1, conv2, ... by default) and its maps chained."""
    layers: list[Layer] = []
    count = Counter[str]()
    features = entries.in_features
    for entry in entries.layers:
        kind = "conv" if entry.conv else "pool"
        count[kind] += 1
        name = entry.name or f"{kind}{count[kind]}"
        if entry.conv:
            conv = entry.conv
            layers.append(Conv(name, features, conv.features, conv.kernel, conv.activation))
            features = conv.features
        elif entry.pool:
            layers.append(Pool(name, entry.pool.window))
    return tuple(layers)


def _read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"{path}: no such network file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read as a YAML text file: {error}") from None
    try:
        _check_depth(path, text)
        document = YAML(typ="rt").load(text)
    except InvalidInput:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidInput(f"{path}{line}: not valid YAML: {error.problem}") from None
    except Exception as error:  # the parser lets errors of its own code out, of many kinds
        raise InvalidInput(f"{path}: not valid YAML: {error}") from None
    if not isinstance(document, Mapping):
        raise InvalidInput(f"{path}, line 1: a network is a mapping with name: and layers:")
    return document


def _check_depth(path: Path, text: str) -> None:
    """Refuse deep nesting before it is read: the parser takes exponential time for some."""
    depth = 0
    for event in YAML(typ="rt").parse(text):
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            line = event.start_mark.line + 1
            raise InvalidInput(f"{path}, line {line}: more than {DEEPEST} levels; unnest it")


def _line(document: Any, location: Sequence[str | int]) -> int:
    """The line, from 1, of the innermost part of ``location`` that the document has."""
    node, line = document, 1
    for key in location:
        try:
            node, line = node[key], node.lc.data[key][0] + 1
        except (AttributeError, IndexError, KeyError, TypeError):  # missing, or merged by <<
            break
    return line


def _first_cause(errors: list[ErrorDetails]) -> ErrorDetails:
    """A key misspelt is unknown and leaves another missing: the unknown one is told first."""
    return min(errors, key=lambda error: error["type"] not in UNKNOWN_KEY)


def _refusal(
    path: Path, document: Any, location: Sequence[str | int], problem: str
) -> InvalidInput:
    return InvalidInput(f"{path}, line {_line(document, location)}: {problem}")


def _explain(path: Path, document: Any, error: ErrorDetails) -> InvalidInput:
    """One of pydantic's complaints, in our words and with its line."""
    location = error["loc"]
    *parents, last = location
    owner = ".".join(map(str, parents)) or "the network"
    found = f"{'.'.join(map(str, location))} is {short_repr(error['input'])}"
    match error["type"]:
        case "extra_forbidden" | "invalid_key":
            known = _known_keys(parents)
            close = get_close_matches(str(last), known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            problem = f"unknown key {last!r} in {owner}; {hint}The keys are {', '.join(known)}"
        case "missing":
            problem = f"{owner} lacks the key {last!r}; add it"
        case "literal_error":
            known = list(get_args(Activation))
            what = short_repr(error["input"])
            problem = f"unknown activation {what}; choose one of {', '.join(known)}"
        case "model_type":
            problem = f"{found}; give it as keys and values: {', '.join(_known_keys(location))}"
        case "list_type" | "too_short":
            problem = f"{found}; give a list of one layer or more"
        case _:  # of a validator above
            problem = f"{found}; {error['msg'].removeprefix('Value error, ')}"
    return _refusal(path, document, location, problem)


def _known_keys(parents: Sequence[str | int]) -> list[str]:
    models: dict[str, type[_Entry]] = {
        "conv": _ConvEntry,
        "pool": _PoolEntry,
        "input": _InputEntry,
        "layers": _LayerEntry,
    }
    owner = next((models[p] for p in reversed(parents) if p in models), _NetworkFile)
    return list(owner.model_fields)
