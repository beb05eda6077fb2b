"""nnU-Net's postprocessing is read as rules, and nothing that a pickle names is run."""

from __future__ import annotations

import json
import pickle
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from znni.components.rules import KeepLargest
from znni.core.errors import InvalidInput
from znni.importing.nnunet_postprocessing import KEEP_LARGEST, MODULE, read_postprocessing

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that pickles as nnU-Net's does."""

    def called(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle ran a function")

    called.__module__, called.__qualname__ = MODULE, KEEP_LARGEST
    parts = MODULE.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules[MODULE], KEEP_LARGEST, called, raising=False)
    return called


def stored(tmp_path: Path, value: Any, protocol: int = 4) -> Path:
    path = tmp_path / "postprocessing.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def arguments(labels: Any, **others: Any) -> dict[str, Any]:
    return {"labels_or_regions": labels, **others}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_rules_of_a_pickle(tmp_path: Path, function: Any, protocol: int) -> None:
    labels = list(np.unique([3, 1, 2]))  # as nnU-Net notes the foreground
    assert type(labels[0]) is np.int64
    each = [arguments(labels), arguments(np.int64(300)), arguments((1, 2), background_label=3)]
    path = stored(tmp_path, ([function] * 3, each), protocol)
    wanted = (KeepLargest((1, 2, 3)), KeepLargest((300,)), KeepLargest((1, 2), 3))
    assert read_postprocessing(path) == wanted
    assert read_postprocessing(tmp_path) == wanted


def test_the_number_types_of_a_pickle(tmp_path: Path, function: Any) -> None:
    for kind in ("int8", "uint8", "int16", "uint16", ">i4", "<u4", ">u8"):
        path = stored(tmp_path, ([function], [arguments(np.array([77], kind)[0])]))
        assert read_postprocessing(path) == (KeepLargest((77,)),)
    older = path.read_bytes().replace(b"\x16numpy._core.multiarray", b"\x15numpy.core.multiarray")
    path.write_bytes(older.replace(older[2:11], b""))  # without the frame, whose length changed
    assert read_postprocessing(path) == (KeepLargest((77,)),)


def test_nothing_to_do(tmp_path: Path) -> None:
    assert read_postprocessing(stored(tmp_path, ([], []))) == ()


def test_regions_in_a_list(tmp_path: Path, function: Any) -> None:
    path = stored(tmp_path, ([function], [arguments([(3, 2), 1, (2,)])]))
    assert read_postprocessing(path) == (KeepLargest((1, 2, 3)),)


class Running:
    """Runs a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("called", "name"),
    [
        (exec, r"builtins\.exec"),
        (getattr, r"builtins\.getattr"),
        (np.frombuffer, r"numpy\.(_core\.multiarray\.)?frombuffer"),
        (Path, r"pathlib\.Path"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, called: Any, name: str, protocol: int) -> None:
    path = stored(tmp_path, ([Running(called, "x = 1")], [{}]), protocol)
    if protocol < 3:
        name = name.replace("builtins", "(builtins|__builtin__)")
    with pytest.raises(
        InvalidInput, match=f"postprocessing.pkl names {name}, which nnU-Net 2 does"
    ):
        read_postprocessing(path)


FUNCTION = f"c{MODULE}\n{KEEP_LARGEST}\n".encode()
SCALAR, DTYPE, ENCODE = (
    b"cnumpy._core.multiarray\nscalar\n",
    b"cnumpy\ndtype\n",
    b"c_codecs\nencode\n",
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04",
        b"nonsense",
        FUNCTION + b"(tR.",  # calls the function
        FUNCTION + b"}V__code__\nI1\nsb.",  # changes it
        SCALAR + b"N}V__call__\nI1\ns\x86b.",  # changes what stands for a name
        DTYPE + b")\x81.",  # makes an instance of it
        SCALAR + DTYPE + b"(Vf8\nI00\nI01\ntRC\x0812345678\x86R.",  # a float
        SCALAR + DTYPE + b"(Vi8\nI00\nI01\ntRC\x041234\x86R.",  # too few bytes
        ENCODE + b"(I1\nI2\ntR.",
        b"Nr\xff\xff\xff\xff.",  # asks for memory
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x05\x8e" + struct.pack("<Q", 2**62) + b".",
        b"Vx\nQ.",  # an object of elsewhere
        b"\x82\x01.",  # a registered extension
        b"I" + b"9" * 5000 + b"\n.",
    ],
)
def test_damaged_and_hostile_pickles_are_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "postprocessing.pkl"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"^postprocessing.pkl (cannot be read|is not as)"):
        read_postprocessing(path)


def recursive() -> list[Any]:
    labels: list[Any] = []
    labels.append(labels)
    return labels


def nested() -> list[Any]:
    """A small pickle whose text would have a billion items."""
    labels: list[Any] = [1]
    for _ in range(30):
        labels = [labels, labels]
    return labels


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (arguments([]), "has no labels from 0 to 65535"),
        (arguments("1"), "has no labels from 0 to 65535"),
        (arguments(None), "has no labels from 0 to 65535"),
        (arguments([-1]), "has no labels from 0 to 65535"),
        (arguments(10**5000), "has no labels from 0 to 65535"),
        (arguments(1, background_label=2.5), "has no labels from 0 to 65535"),
        (arguments(recursive()), "has no labels from 0 to 65535"),
        (arguments(nested()), "has no labels from 0 to 65535"),
        (arguments([[1] * 1000] * 10**5), "has no labels from 0 to 65535"),
        (arguments(True), "has no labels from 0 to 65535"),
        ({"labels_or_regions": 1, 10**5000: 1}, "has the argument '', which"),
        (arguments(1, connectivity=1), "has the argument 'connectivity', which is not known"),
        ({}, "has no labels_or_regions"),
        (7, "has no labels_or_regions"),
    ],
)
def test_arguments_of_other_kinds(tmp_path: Path, function: Any, given: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"postprocessing.pkl: function 1 {problem}"):
        read_postprocessing(stored(tmp_path, ([function], [given])))


@pytest.mark.parametrize("value", [1, [], ([],), ([], [], []), {}, ("ab", "cd"), (1, 2)])
def test_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidInput, match="is not as nnU-Net 2 writes it"):
        read_postprocessing(stored(tmp_path, value))


def test_functions_and_arguments_of_other_numbers(tmp_path: Path, function: Any) -> None:
    with pytest.raises(InvalidInput, match="has 2 functions, and arguments of 1"):
        read_postprocessing(stored(tmp_path, ([function] * 2, [arguments(1)])))
    with pytest.raises(InvalidInput, match="has 2000 functions, and arguments of 2000; as many"):
        read_postprocessing(stored(tmp_path, ([function] * 2000, [arguments(1)] * 2000)))
    with pytest.raises(InvalidInput, match="function 2 is not remove_all_but"):
        read_postprocessing(stored(tmp_path, ([function, 5], [arguments(1)] * 2)))


def test_files_that_are_missing_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no postprocessing.pkl"):
        read_postprocessing(tmp_path)
    with pytest.raises(InvalidInput, match=r"postprocessing.pkl cannot be read: No such file"):
        read_postprocessing(tmp_path / "postprocessing.pkl")
    with pytest.raises(InvalidInput, match=r"too large for postprocessing.pkl"):
        read_postprocessing(stored(tmp_path, b"0" * 2**20))


def test_the_text_beside_the_pickle(tmp_path: Path) -> None:
    written = {
        "input_folder": {"mean": {"1": {"Dice": 0.5}}},
        "postprocessing_fns": [KEEP_LARGEST, KEEP_LARGEST],
        "postprocessing_kwargs": [arguments([1, 2]), arguments(2)],
    }
    path = tmp_path / "postprocessing.json"
    path.write_text(json.dumps(written))
    assert read_postprocessing(tmp_path) == (KeepLargest((1, 2)), KeepLargest((2,)))
    path.write_text(json.dumps(written | {"postprocessing_fns": ["other", KEEP_LARGEST]}))
    with pytest.raises(InvalidInput, match=r"postprocessing.json: function 1 is not remove_all"):
        read_postprocessing(path)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="wrong or missing at postprocessing_fns"):
        read_postprocessing(path)
