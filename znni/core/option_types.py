"""Types of options and formats: names from fixed sets, points in time, and maps."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from znni.core.errors import InvalidInput
from znni.core.processors import DeviceChoice, DeviceKind

Border: TypeAlias = Literal["valid", "same"]
Pad: TypeAlias = Literal["reflect", "edge", "constant"]
OutputType: TypeAlias = Literal["float32", "float16", "uint8"]
StoredType: TypeAlias = OutputType | Literal["uint16"]
Accuracy: TypeAlias = Literal["float32", "tf32", "bfloat16"]
Costs: TypeAlias = Literal["auto", "built-in", "measured"]
# The number of a point in time; ``all``: the points in time are the maps.
PointInTime: TypeAlias = int | Literal["all"]
Channel: TypeAlias = int | str  # the number of a map, or its name


class MapOverTime(NamedTuple):
    """One map at all points in time, each of which is a map then.

    Attributes:
        number: number of the map.
    """

    number: int


Moment: TypeAlias = PointInTime | MapOverTime  # what formats read of several points in time
Calibrated: TypeAlias = Literal["all", DeviceKind]
# How coarser resolutions are made: the mean of voxels, or their most frequent label; empty: not.
Coarsening: TypeAlias = Literal["", "mean", "mode"]
Compression: TypeAlias = Literal["zstd", "gzip", "none"]
DEFAULT_COMPRESSION: Compression = "zstd"  # of the chunks of a Zarr
# Compression of a file that is written at the end, from all finished blocks.
Packing: TypeAlias = Literal["none", "deflate", "gzip"]
Codec: TypeAlias = Literal["zstd", "gzip", "deflate"]
# What reads the chunks of an input: threads, from places that HDF5 tells, or zarr-python; or it is
# mapped, and its chunks are rows.
Form: TypeAlias = Literal["hdf5", "zarr", "mapped"]
Division: TypeAlias = Literal["none", "power-of-two", "all"]
Recheck: TypeAlias = Literal["none", "sample", "all"]
Bits: TypeAlias = Literal["same", "class"]
Viewer: TypeAlias = Literal["napari", "neuroglancer"]
Blend: TypeAlias = Literal["gaussian", "constant"]
WindowRules: TypeAlias = Literal["monai", "nnunet"]
BlendedActivation: TypeAlias = Literal["identity", "softmax", "sigmoid"]

# The largest relative error that a primitive of each class may promise, best class first. It is
# relative to the largest output, where products do not cancel. A plan uses only primitives of the
# class that the user allows and of the classes before it. The bound for tf32 follows from its 11
# significant bits: tensor cores cut off both factors of every product, 2^-10 each.
ACCURACIES: dict[Accuracy, float] = {"float32": 2e-5, "tf32": 2e-3, "bfloat16": 1e-2}

# The voxels of an output that a verification computes again by default.
VERIFIED_VOXELS = 32

NAMES = {
    "border": Border,
    "pad": Pad,
    "dtype": OutputType,
    "accuracy": Accuracy,
    "costs": Costs,
    "micro_batches": Division,
    "device": DeviceChoice,
    "recheck": Recheck,
    "bits": Bits,
    "blend": Blend,
    "like": WindowRules,
    "activation": BlendedActivation,
}


def check_names(**given: str) -> None:
    """Check names that a caller without a type checker may have misspelt.

    Args:
        given: the value chosen for each option, by the option's name in ``NAMES``.

    Raises:
        InvalidInput: a value is not among its choices.
    """
    for name, value in given.items():
        if value not in (choices := get_args(NAMES[name])):
            raise InvalidInput(f"{name} is {value!r}; choose one of {', '.join(choices)}")
