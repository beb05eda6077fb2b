"""nnU-Net's postprocessing, as rules: ``postprocessing.pkl`` and ``postprocessing.json``.

nnU-Net pickles its functions and their arguments. Here the pickle is read without importing or
calling anything that it names. All that it may name is nnU-Net's function, and NumPy's integers, as
which nnU-Net notes labels.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from znni.components.rules import KeepLargest
from znni.components.runs import LABELS
from znni.core.errors import InvalidInput
from znni.importing.nnunet_plans import read_json

PICKLE, JSON = "postprocessing.pkl", "postprocessing.json"

KEEP_LARGEST = "remove_all_but_largest_component_from_segmentation"
MODULE = "nnunetv2.postprocessing.remove_connected_components"
NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")  # by versions of NumPy
MOST_BYTES = 2**20  # nnU-Net's files have some kilobytes
MOST_RULES = 2**10  # it writes one for all labels, and one for each


class _Json(BaseModel):
    """The part of ``postprocessing.json`` that says what is done."""

    postprocessing_fns: list[str]
    postprocessing_kwargs: list[dict[str, Any]]


def postprocessing_of(folder: Path) -> Path | None:
    """Return the file of a folder that describes postprocessing, if there is one."""
    found = (folder / name for name in (PICKLE, JSON))
    return next((file for file in found if file.is_file()), None)


def read_postprocessing(path: Path) -> tuple[KeepLargest, ...]:
    """Return the rules of a file of nnU-Net's postprocessing.

    Args:
        path: ``postprocessing.pkl`` or ``postprocessing.json``, or a folder with one of them.

    Raises:
        InvalidInput: there is none, or it cannot be read, or it is not as nnU-Net writes it.
    """
    if path.is_dir():
        if (found := postprocessing_of(path)) is None:
            raise InvalidInput(f"{path} has no {PICKLE}; give nnU-Net's own folder")
        path = found
    if path.suffix == ".json":
        held = read_json(path, _Json)
        return _rules(path.name, held.postprocessing_fns, held.postprocessing_kwargs)
    match _unpickled(path):
        case (list() | tuple() as functions, list() | tuple() as arguments):
            return _rules(path.name, functions, arguments)
    raise InvalidInput(f"{path.name} is not as nnU-Net 2 writes it: give its own file")


def _rules(name: str, functions: Any, arguments: Any) -> tuple[KeepLargest, ...]:
    """Return the rules that functions with their arguments stand for."""
    if len(functions) != len(arguments) or len(functions) > MOST_RULES:
        raise InvalidInput(
            f"{name} has {len(functions)} functions, and arguments of {len(arguments)}; as many of "
            f"both are expected, at most {MOST_RULES}. Give nnU-Net's own file"
        )
    rules = []
    for number, (function, given) in enumerate(zip(functions, arguments, strict=True), 1):
        if function != KEEP_LARGEST:
            raise InvalidInput(f"{name}: function {number} is not {KEEP_LARGEST}, which is known")
        rules.append(_rule(f"{name}: function {number}", given))
    return tuple(rules)


def _rule(place: str, given: Any) -> KeepLargest:
    match given:
        case {"labels_or_regions": labels, "background_label": background, **others}:
            pass
        case {"labels_or_regions": labels, **others}:
            background = 0
        case _:
            raise InvalidInput(f"{place} has no labels_or_regions; give nnU-Net's own file")
    if others:
        foreign = next((key for key in others if isinstance(key, str)), "")[:50]
        raise InvalidInput(f"{place} has the argument {foreign!r}, which is not known here")
    each = tuple(islice(_labels(labels), LABELS + 1))
    if not 0 < len(each) <= LABELS or not all(map(_is_label, (*each, background))):
        raise InvalidInput(f"{place} has no labels from 0 to {LABELS - 1}; give nnU-Net's own file")
    return KeepLargest(tuple(sorted(set(each))), background)


def _is_label(value: object) -> bool:
    return type(value) is int and 0 <= value < LABELS


def _labels(given: Any) -> Iterator[Any]:
    """Yield the labels of a label, of a region, or of a list of these."""
    for one in given if isinstance(given, list | tuple) else (given,):
        yield from one if isinstance(one, list | tuple) else (one,)


def _unpickled(path: Path) -> Any:
    """Return what a pickle holds: nnU-Net's function as its name, and labels as integers."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"{path.name} is too large for {PICKLE}; give nnU-Net's own file")
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except _Foreign as error:
        raise InvalidInput(
            f"{path.name} names {error}, which nnU-Net 2 does not write there; nothing of it was "
            f"run. Give nnU-Net's own file"
        ) from None
    except Exception as error:  # a damaged file makes the reader raise any kind
        raise InvalidInput(
            f"{path.name} cannot be read as a pickle ({type(error).__name__}); is the file whole?"
        ) from None


class _Foreign(Exception):
    """A name in a pickle that is not known here."""


# Python's own reader: that in C takes gigabytes if a file of a few bytes asks for them.
class _Unpickler(pickle._Unpickler):
    """Reads values, and stands in for the few names that nnU-Net writes."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name: nothing that changes or runs anything.

        Raises:
            _Foreign: the name is not known.
        """
        if (module, name) == (MODULE, KEEP_LARGEST):
            return name
        if module in NUMPY and name == "scalar":
            return _Integer()
        if (module, name) == ("numpy", "dtype"):
            return _Dtype()
        if (module, name) == ("_codecs", "encode"):  # of bytes, in protocols before 3
            return _Encode()
        raise _Foreign(f"{module}.{name}"[:200])


class _Type:
    """An integer type of NumPy, as a pickle makes it: first its size, then the order of bytes."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take NumPy's state of a type: its version, the order of its bytes, and what it lacks."""
        self.order = state[1]


class _Dtype:
    """Stands for ``numpy.dtype``."""

    __slots__ = ()

    def __call__(self, code: str, _align: bool, _copy: bool) -> _Type:
        return _Type(code)


class _Integer:
    """Stands for the function that makes NumPy's numbers."""

    __slots__ = ()

    def __call__(self, kind: _Type, data: bytes) -> int:
        signed, nbytes = {"i": True, "u": False}[kind.code[0]], int(kind.code[1:])
        if nbytes != len(data):
            raise pickle.UnpicklingError("a number has other bytes than its type")
        return int.from_bytes(data, "big" if kind.order == ">" else "little", signed=signed)


class _Encode:
    """Stands for ``_codecs.encode``."""

    __slots__ = ()

    def __call__(self, text: str, _encoding: str) -> bytes:
        return text.encode("latin1")
