"""Options that users choose: names from a fixed set, and amounts of memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from znni.core.errors import InvalidInput, option
from znni.core.nearest import nearest
from znni.core.option_fields import Panel, described
from znni.core.processors import FASTEST, DeviceChoice, DeviceKind
from znni.core.shapes import Vec3

# Fewer bytes of memory than this are a number whose unit was forgotten.
LEAST_BYTES = 1024

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


@dataclass(frozen=True)
class Choices:
    """Limits and choices that a plan must respect.

    Attributes:
        ram: bytes that the process may take beside the arrays given to it, or a size such as
            ``8GiB``. The default is the available memory less a margin.
        threads: number of worker threads; by default one for every core.
        device: where layers run: ``cpu``, ``gpu`` (the first one), ``cpu+gpu`` (first layers
            on the CPU, the others on the GPU; or all on the CPU, some with the GPU's help), or
            ``auto`` (the fastest).
        theta: number of first layers on the host; the others run on the GPU. It is the ``theta`` of
            the ZNNi paper, and ``layers_on_host`` of a plan. By default the fastest.
        gpu_memory: bytes of GPU memory, as for ``ram``, beside what CUDA takes for itself.
        gpus: number of GPUs that compute patches at the same time, ``all``, or a list of GPU
            numbers such as ``0,2``.
        accuracy: lowest accuracy class that primitives may have. ``tf32`` allows relative errors of
            up to 2e-3 per layer, and ``bfloat16`` up to 1e-2, where that is faster.
        costs: source of predicted times. ``measured`` uses the results of znni calibrate on this
            machine, and ``built-in`` the cost model. ``auto`` uses measured times if there are
            any. If there are none, a long run first measures the layers of its plan. Except with
            ``built-in``, the times of a run are added to the measured ones.
        micro_batches: allowed sizes of the pieces in which a layer's batch is computed when memory
            is short: ``none`` (only the whole batch), ``power-of-two``, or ``all``.

    Raises:
        InvalidInput: a name is not among its choices, or a value is of another type.
    """

    panel: ClassVar[Panel] = "Plan and hardware"

    ram: int | str | None = described(
        None,
        "Memory that the process may use, such as 8GiB. Default: 9/10 of what is available.",
        metavar="SIZE",
        parse=str,
        first=True,
    )
    threads: int | None = described(None, "Worker threads. Default: all cores.")
    device: DeviceChoice = described(
        FASTEST, "Device that runs the layers; auto: the fastest choice.", first=True
    )
    theta: int | None = described(
        None,
        "Number of first layers on the host; the others run on the GPU. Default: the fastest.",
        metavar="N",
    )
    gpu_memory: int | str | None = described(
        None,
        "GPU memory that the plan may use. Default: 9/10 of what is free.",
        metavar="SIZE",
        parse=str,
    )
    gpus: int | str = described(
        1,
        "GPUs that compute patches at the same time: a number, all, or a list.",
        metavar="N|all|0,2",
        parse=str,
    )
    accuracy: Accuracy = described(
        "float32",
        "tf32 and bfloat16 may be faster; they allow relative errors up to 0.002 and 0.01 per "
        "layer.",
    )
    costs: Costs = described(
        "auto",
        "Source of predicted times: measurements of znni calibrate, or the built-in model.",
    )
    micro_batches: Division = described(
        "power-of-two",
        "Sizes of the pieces into which a layer's batch may be cut if memory is short. "
        "Planning with all takes several times as long.",
    )

    def __post_init__(self) -> None:
        given: dict[str, tuple[object, tuple[type, ...], str]] = {
            "ram": (self.ram, (int, str), "a size such as '8GiB', or bytes"),
            "threads": (self.threads, (int,), "a number"),
            "theta": (self.theta, (int,), "a number of layers"),
            "gpu_memory": (self.gpu_memory, (int, str), "a size such as '8GiB', or bytes"),
        }
        for name, (value, types, wanted) in given.items():
            if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
                kind = type(value).__name__
                raise InvalidInput(f"{name} is {value!r}, a {kind}; give {wanted}")
        check_names(
            device=self.device,
            accuracy=self.accuracy,
            costs=self.costs,
            micro_batches=self.micro_batches,
        )


class PlanOptions(TypedDict, total=False):
    """The fields of ``Choices`` as keyword arguments."""

    ram: int | str | None
    threads: int | None
    device: DeviceChoice
    theta: int | None
    gpu_memory: int | str | None
    gpus: int | str
    accuracy: Accuracy
    costs: Costs
    micro_batches: Division


def check_keywords(caller: Callable[..., object], known: type, given: Mapping[str, object]) -> None:
    """Check the options that a function or a class of ``znni`` takes as ``**options``.

    Args:
        caller: the function or class.
        known: the ``TypedDict`` of its options, such as ``PlanOptions``.
        given: the options passed to it.

    Raises:
        InvalidInput: a limit of memory is so few bytes that a unit was forgotten.
        TypeError: the caller takes no such argument. Python raises the same for any function.
    """
    for name in given:
        if name not in (options := known.__annotations__):
            names = {*signature(caller).parameters, *options} - {"options"}
            close = nearest(name, names)
            hint = f". Did you mean {close!r}?" if close else ""
            raise TypeError(
                f"znni.{caller.__qualname__}() got an unexpected keyword argument {name!r}{hint}"
            )
    for name in ("ram", "gpu_memory"):
        value = given.get(name)
        if isinstance(value, int) and 0 < value < LEAST_BYTES and not isinstance(value, bool):
            raise InvalidInput(f"{option(name, value)}: {_unit_forgotten(value)}")


@dataclass(frozen=True)
class InputChunks:
    """The chunks of a stored volume, for predicted times.

    Attributes:
        form: what reads the chunks.
        codec: how they are compressed; None if they are not, or if that is not known.
        chunk: extents of a chunk. Each chunk that a block overlaps is decoded whole. If a file is
            mapped, it is a row of values that follow each other in the file.
        volume: extents of the volume.
    """

    form: Form
    codec: Codec | None
    chunk: Vec3
    volume: Vec3


@dataclass(frozen=True)
class Stored:
    """Storage of the values at both ends of a run.

    Attributes:
        dtype: type of the output values; ``uint8`` stores 0..1 as 0..255.
        input_itemsize: bytes of one stored input value.
        scaled_on_gpu: whether a GPU that computes the first layers also scales the input.
        made_on_gpu: whether a GPU that computes the last layers also makes what is stored: values
            of its type, or labels.
        output_array: bytes of an array for the whole output, if the run makes one; else 0.
        label_maps: maps of labels that are stored instead of the values; 0: values are stored.
        label_itemsize: bytes of a label.
        compression: how stored values are compressed, for predicted times.
        packing: how a file is compressed that is written at the end, from all finished blocks;
            None: blocks are written to their places.
        input_chunks: the chunks of the input; None if it has none, or if they are not known.
        chunk_files: whether each chunk of the output is a file.
        input_chunk_bytes: bytes that reading the input takes for a chunk, of which it needs a part.
        coarser: whether coarser resolutions of the output are made when all blocks are written.
        loads_zarr: whether input or output need zarr-python.

    Raises:
        InvalidInput: the type is not among its choices.
    """

    dtype: OutputType = "float32"
    input_itemsize: int = 4
    scaled_on_gpu: bool = False
    made_on_gpu: bool = True
    output_array: int = 0
    label_maps: int = 0
    label_itemsize: int = 1
    compression: Compression = "none"
    packing: Packing | None = None
    input_chunks: InputChunks | None = None
    chunk_files: bool = False
    input_chunk_bytes: int = 0
    coarser: bool = False
    loads_zarr: bool = False

    def __post_init__(self) -> None:
        check_names(dtype=self.dtype)


AS_COMPUTED = Stored()
ANYTHING = Choices()


def memory_size(given: int | str) -> int:
    """Return bytes of memory from ``8GiB``, ``500MB`` or a plain number of bytes.

    Raises:
        ValueError: the value is none of these, or text of so few bytes that a unit was forgotten.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        if not re.fullmatch(r"\d+(\.\d+)? *[A-Za-z]*", str(given).strip()):
            raise ValueError  # pydantic would accept it and ignore the rest
        size = int(TypeAdapter(ByteSize).validate_python(given))
    except (ValueError, ValidationError, OverflowError):
        raise ValueError(f"{given!r} is not a size of memory; write it as 8GiB or 500MB") from None
    if isinstance(given, str) and given.strip().isdigit() and 0 < size < LEAST_BYTES:
        raise ValueError(_unit_forgotten(given.strip()))
    return size


def _unit_forgotten(number: int | str) -> str:
    return f"{number} is {number} bytes; did you mean {number}GiB?"
