"""Descriptions of bioimage.io models, of format 0.4 and 0.5, in one common form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3

VERSIONS = ("0.4", "0.5")
LETTERS = {"batch": "b", "channel": "c", "time": "t", "index": "i"}


@dataclass(frozen=True)
class Source:
    """A file of a package.

    Attributes:
        path: its path within the package.
        sha256: its checksum; empty if the description has none.
    """

    path: str
    sha256: str = ""


@dataclass(frozen=True)
class Processing:
    """A step of preprocessing or postprocessing, with what it is given."""

    kind: str
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: its name.
        axes: a letter for each axis, such as ``bczyx``.
        extents: the extents of all axes; None for those that are free.
        halo: voxels of each axis to cut off at both ends.
        processing: what is done before the network, or after it.
        test: the file of its test tensor.
    """

    name: str
    axes: str
    extents: tuple[int | None, ...]
    halo: tuple[int, ...]
    processing: tuple[Processing, ...]
    test: Source | None

    def in_space(self, values: Sequence[int]) -> Vec3:
        """Return the values of the axes z, y and x."""
        return Vec3(*(values[self.axes.index(axis)] for axis in "zyx"))


@dataclass(frozen=True)
class Architecture:
    """The class of a network whose parameters are given.

    Attributes:
        name: its name.
        library: the module of a library that has it; empty if a file of the package has it.
        given: the arguments to make it.
    """

    name: str
    library: str
    given: Mapping[str, Any]


@dataclass(frozen=True)
class Description:
    """A model.

    Attributes:
        inputs: its inputs.
        outputs: its outputs.
        weights: the file of each format of weights.
        beside: files that must lie beside the weights in ONNX.
        architecture: the class of the network for the state dict, if there is one.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: Mapping[str, Source]
    beside: tuple[Source, ...]
    architecture: Architecture | None


class _File(BaseModel):
    source: str
    sha256: str | None = None

    @property
    def place(self) -> Source:
        return Source(self.source, self.sha256 or "")


class _Processing(BaseModel):
    id: str = ""
    name: str = ""
    kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def common(self) -> Processing:
        return Processing(self.id or self.name, self.kwargs)


class _Axis(BaseModel):
    type: str
    id: str = ""
    size: Any = None
    halo: int = 0
    channel_names: list[str] | None = None

    @property
    def letter(self) -> str:
        return self.id if self.type == "space" else LETTERS.get(self.type, "?")

    @property
    def extent(self) -> int | None:
        if self.channel_names:
            return len(self.channel_names)
        return self.size if isinstance(self.size, int) else None


class _Tensor(BaseModel):
    id: str = ""
    name: str = ""
    axes: str | list[_Axis]
    shape: Any = None
    halo: list[int] | None = None
    preprocessing: list[_Processing] = Field(default_factory=list)
    postprocessing: list[_Processing] = Field(default_factory=list)
    test_tensor: _File | None = None

    def common(self, test: Source | None) -> Tensor:
        """Return it in the common form, with the test tensor that format 0.4 names elsewhere."""
        processing = tuple(one.common for one in (*self.preprocessing, *self.postprocessing))
        if isinstance(self.axes, str):
            free = [None] * len(self.axes)
            fixed = isinstance(self.shape, list) and len(self.shape) == len(free)
            axes, extents = self.axes, tuple(self.shape if fixed else free)
            halo = tuple(self.halo or [0] * len(axes))
        else:
            axes = "".join(axis.letter for axis in self.axes)
            extents = tuple(axis.extent for axis in self.axes)
            halo = tuple(axis.halo for axis in self.axes)
            test = self.test_tensor.place if self.test_tensor else None
        if len(halo) != len(axes):
            raise InvalidInput(f"its tensor {self.id or self.name} has a halo of {len(halo)} axes")
        return Tensor(self.id or self.name, axes, extents, halo, processing, test)


class _Weights(_File):
    architecture: Any = None
    kwargs: dict[str, Any] = Field(default_factory=dict)
    external_data: _File | None = None


class _Description(BaseModel):
    type: str = "model"
    format_version: str
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    weights: dict[str, _Weights | None]
    test_inputs: list[str] = Field(default_factory=list)
    test_outputs: list[str] = Field(default_factory=list)


def described(content: Any) -> Description:
    """Return the description that a file holds.

    Raises:
        InvalidInput: it is of another kind or version, or lacks something.
    """
    version = str(content.get("format_version", "none")) if isinstance(content, Mapping) else "none"
    if version.rpartition(".")[0] not in VERSIONS and version not in VERSIONS:
        raise InvalidInput(
            f"has the format version {version} of bioimage.io; those read here are "
            f"{' and '.join(VERSIONS)}"
        )
    try:
        found = _Description.model_validate({**content, "format_version": version})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise InvalidInput(
            f"is not as bioimage.io writes it: wrong or missing at {where} ({problem['msg']})"
        ) from None
    if found.type != "model":
        raise InvalidInput(f"describes a {found.type}, not a model; give the package of a model")
    weights = {kind: given for kind, given in found.weights.items() if given}
    beside = (given.external_data.place for given in weights.values() if given.external_data)
    return Description(
        _tensors(found.inputs, found.test_inputs),
        _tensors(found.outputs, found.test_outputs),
        {kind: given.place for kind, given in weights.items()},
        tuple(beside),
        _architecture(weights.get("pytorch_state_dict")),
    )


def _tensors(given: Sequence[_Tensor], tests: Sequence[str]) -> tuple[Tensor, ...]:
    places: list[Source | None] = [Source(path) for path in tests]
    places += [None] * (len(given) - len(places))
    return tuple(one.common(place) for one, place in zip(given, places, strict=False))


def _architecture(weights: _Weights | None) -> Architecture | None:
    """Return the class that a state dict belongs to."""
    if weights is None:
        return None
    match weights.architecture:
        case {"callable": str(name), **others}:
            kwargs = others.get("kwargs") or {}
            library = "" if "source" in others else str(others.get("import_from", ""))
            return Architecture(name, library, kwargs if isinstance(kwargs, Mapping) else {})
        case str(path) if ":" not in path:
            library, _, name = path.rpartition(".")
            return Architecture(name, library, weights.kwargs)
        case str(path):
            return Architecture(path.rpartition(":")[2], "", weights.kwargs)
    return None
