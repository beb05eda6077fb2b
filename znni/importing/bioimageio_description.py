"""Descriptions of bioimage.io models, of format 0.4 and 0.5, as both write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, Field, ValidationError, field_validator

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3

VERSIONS = ("0.4", "0.5")
LETTERS = {"batch": "b", "channel": "c", "time": "t", "index": "i"}


class Source(BaseModel):
    """A file of a package.

    Attributes:
        path: its path within the package.
        sha256: its checksum, if the description has one.
    """

    path: str = Field(alias="source")
    sha256: str | None = None


class Processing(BaseModel):
    """A step of preprocessing or postprocessing, with what it is given."""

    kind: str = Field("", validation_alias=AliasChoices("id", "name"))
    given: dict[str, Any] = Field(default_factory=dict, alias="kwargs")


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


class Tensor(BaseModel):
    """An input or output. Format 0.4 gives its axes as letters, and 0.5 as a list."""

    name: str = Field("", validation_alias=AliasChoices("id", "name"))
    own_axes: str | list[_Axis] = Field(alias="axes")
    own_halo: list[int] | None = Field(None, alias="halo")
    shape: Any = None
    preprocessing: list[Processing] = Field(default_factory=list)
    postprocessing: list[Processing] = Field(default_factory=list)
    test: Source | None = Field(None, alias="test_tensor")

    @property
    def axes(self) -> str:
        """A letter for each axis, such as ``bczyx``."""
        if isinstance(self.own_axes, str):
            return self.own_axes
        return "".join(axis.letter for axis in self.own_axes)

    @property
    def extents(self) -> tuple[int | None, ...]:
        """The extents of all axes; None for those that are free."""
        if not isinstance(self.own_axes, str):
            return tuple(axis.extent for axis in self.own_axes)
        is_fixed = isinstance(self.shape, list) and len(self.shape) == len(self.axes)
        return tuple(self.shape if is_fixed else [None] * len(self.axes))

    @property
    def halo(self) -> tuple[int, ...]:
        """The voxels of each axis to cut off at both ends."""
        if isinstance(self.own_axes, str):
            return tuple(self.own_halo or [0] * len(self.axes))
        return tuple(axis.halo for axis in self.own_axes)

    @property
    def processing(self) -> tuple[Processing, ...]:
        """A step before the network, or after it."""
        return (*self.preprocessing, *self.postprocessing)

    def in_space(self, values: Sequence[int]) -> Vec3:
        """Return the values of the axes z, y and x."""
        return Vec3(*(values[self.axes.index(axis)] for axis in "zyx"))


class Architecture(BaseModel):
    """The class of a network whose parameters are given.

    Attributes:
        library: the module of a library that has it; empty if a file of the package has it.
        given: the arguments to make it.
    """

    name: str
    library: str
    given: dict[str, Any]


class Weights(Source):
    """A file of weights in some format."""

    own_architecture: Any = Field(None, alias="architecture")
    given: dict[str, Any] = Field(default_factory=dict, alias="kwargs")
    external_data: Source | None = None

    @property
    def architecture(self) -> Architecture | None:
        """The class that a state dict belongs to."""
        match self.own_architecture:
            case {"callable": str(name), **others}:
                kwargs = others.get("kwargs")
                library = "" if "source" in others else str(others.get("import_from", ""))
                given = kwargs if isinstance(kwargs, dict) else {}
                return Architecture(name=name, library=library, given=given)
            case str(path):
                library, _, name = path.rpartition(":" if ":" in path else ".")
                library = "" if ":" in path else library
                return Architecture(name=name, library=library, given=self.given)
        return None


class Description(BaseModel):
    """A model.

    Attributes:
        type: the kind of description.
        weights: the file of each format of weights.
        test_inputs: the test tensors of its inputs in format 0.4.
        test_outputs: the test tensors of its outputs in format 0.4.
    """

    type: str = "model"
    format_version: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    weights: dict[str, Weights]
    test_inputs: list[str] = Field(default_factory=list)
    test_outputs: list[str] = Field(default_factory=list)

    @field_validator("weights", mode="before")
    @classmethod
    def _present(cls, given: Any) -> Any:
        """Leave out formats that the package says it has not."""
        is_known = isinstance(given, Mapping)
        return {kind: one for kind, one in given.items() if one} if is_known else given


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
        model = Description.model_validate({**content, "format_version": version})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise InvalidInput(
            f"is not as bioimage.io writes it: wrong or missing at {where} ({problem['msg']})"
        ) from None
    if model.type != "model":
        raise InvalidInput(f"describes a {model.type}, not a model; give the package of a model")
    for tensors, tests in ((model.inputs, model.test_inputs), (model.outputs, model.test_outputs)):
        for tensor, path in zip(tensors, tests, strict=False):
            tensor.test = tensor.test or Source(source=path)
    for tensor in (*model.inputs, *model.outputs):
        if len(tensor.halo) != len(tensor.axes):
            raise InvalidInput(f"its tensor {tensor.name} has a halo of {len(tensor.halo)} axes")
    return model
