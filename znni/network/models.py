"""A network in a file of another library, as a single layer over a whole window."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from znni.core.shapes import Vec3
from znni.network.convolutions import check_maps
from znni.network.layer_checks import check_count
from znni.network.layer_geometry import SameVoxel

Runtime: TypeAlias = Literal["onnxruntime", "pytorch"]
Numbers: TypeAlias = Literal["float32", "tf32", "float16", "bfloat16"]
NUMBERS: tuple[Numbers, ...] = get_args(Numbers)

# The libraries that compute files, by the files' endings.
RUNTIMES: dict[str, Runtime] = {".onnx": "onnxruntime", ".pt2": "pytorch"}


def is_model_file(path: Path) -> bool:
    """Return whether a file is one that another library can compute, by its ending."""
    return path.suffix in RUNTIMES


@dataclass(frozen=True)
class Execution:
    """The processor, and the numbers, with which a library computes a model.

    Attributes:
        threads: the threads that compute on the CPU.
        gpu: the name of the GPU that computes; empty for the CPU.
        numbers: the numbers that a GPU multiplies.
        compiled: whether the library compiles the model for the GPU first.
    """

    threads: int = 1
    gpu: str = ""
    numbers: Numbers = "float32"
    compiled: bool = False


@dataclass(frozen=True, repr=False)
class Model(SameVoxel):
    """A whole network in a file, which its own library computes window by window.

    Attributes:
        name: the name, unique within the network.
        in_features: the number of input maps.
        features: the number of output maps.
        sha256: the hash of the file's contents.
        runtime: the library that computes it.
        file: the file, by its whole path.
        fixed: the only extents of a window that the file allows; None: any.
        window: the extents of the network's windows. They are None until these are known.
        given: the file as the user gave it, for messages.
    """

    name: str
    in_features: int
    features: int
    sha256: str
    runtime: Runtime
    file: str = field(compare=False)
    fixed: Vec3 | None = None
    window: Vec3 | None = None
    given: str = field(default="", compare=False, repr=False)
    kind: Literal["model"] = field(default="model", repr=False)

    def __post_init__(self) -> None:
        check_count(f"layer {self.name}: in_features", self.in_features)
        check_count(f"layer {self.name}: features", self.features)

    def maps_from(self, *maps: int) -> int:
        """Return the output maps for an input of that many maps."""
        check_maps(self.name, self.in_features, maps[0])
        return self.features
