"""What users choose: among names, and how much memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from typing import Literal, TypeAlias, TypedDict, get_args

from znni.core.errors import InvalidInput

Border: TypeAlias = Literal["valid", "same"]
Pad: TypeAlias = Literal["reflect", "edge", "constant"]
OutputType: TypeAlias = Literal["float32", "float16", "uint8"]
Accuracy: TypeAlias = Literal["float32", "tf32", "bfloat16"]
Costs: TypeAlias = Literal["auto", "built-in", "measured"]
DeviceChoice: TypeAlias = Literal["auto", "cpu", "gpu", "cpu+gpu"]
Calibrated: TypeAlias = Literal["all", "cpu", "gpu"]
Compression: TypeAlias = Literal["zstd", "gzip", "none"]
Division: TypeAlias = Literal["none", "power-of-two", "all"]

# The largest relative error that a primitive of each class may promise, best class first: of the
# largest output, where products do not cancel. Only primitives of the class that a user allows, and
# of those before it, are planned. That of tf32 is what its 11 significant bits allow where both
# factors of every product are cut off, as tensor cores do: 2^-10 each.
ACCURACIES: dict[Accuracy, float] = {"float32": 2e-5, "tf32": 2e-3, "bfloat16": 1e-2}

NAMES = {
    "border": Border,
    "pad": Pad,
    "dtype": OutputType,
    "accuracy": Accuracy,
    "costs": Costs,
    "micro_batches": Division,
    "device": DeviceChoice,
}


def check_names(**given: str) -> None:
    """Check names that a caller without a type checker may have misspelt.

    Args:
        given: what was chosen of each of ``NAMES``.

    Raises:
        InvalidInput: one is not among its choices.
    """
    for name, value in given.items():
        if value not in (choices := get_args(NAMES[name])):
            raise InvalidInput(f"{name} is {value!r}; choose one of {', '.join(choices)}")


@dataclass(frozen=True)
class Choices:
    """What a plan may use.

    Attributes:
        ram: bytes that the process may take beside arrays that it is given, or such as ``8GiB``;
            by default what is available, less a margin.
        threads: worker threads; by default all cores.
        device: where the layers run: the ``cpu``, the first ``gpu``, some first ones on the CPU and
            the others on the GPU (``cpu+gpu``), or, with ``auto``, wherever that is fastest.
        gpu_memory: as ``ram``, of the GPU, beside what CUDA takes for itself.
        gpus: how many GPUs compute patches at the same time, ``all``, or which, as ``0,2``.
        accuracy: the class that primitives may have; ``tf32`` allows relative errors of up to 2e-3
            a layer, and ``bfloat16`` up to 1e-2, where that is faster.
        costs: what times are predicted from: ``measured`` by znni calibrate on this machine, the
            ``built-in`` model, or, with ``auto``, the measured ones if there are any. Unless it is
            ``built-in``, the times of a run join those that were measured.
        micro_batches: the sizes of the pieces that a layer's batch may be computed in, where memory
            is short: none but the whole, powers of two, or all.

    Raises:
        InvalidInput: a name is not among its choices.
    """

    ram: int | str | None = None
    threads: int | None = None
    device: DeviceChoice = "auto"
    gpu_memory: int | str | None = None
    gpus: int | str = 1
    accuracy: Accuracy = "float32"
    costs: Costs = "auto"
    micro_batches: Division = "power-of-two"

    def __post_init__(self) -> None:
        check_names(
            device=self.device,
            accuracy=self.accuracy,
            costs=self.costs,
            micro_batches=self.micro_batches,
        )


class PlanOptions(TypedDict, total=False):
    """``Choices`` as keyword arguments."""

    ram: int | str | None
    threads: int | None
    device: DeviceChoice
    gpu_memory: int | str | None
    gpus: int | str
    accuracy: Accuracy
    costs: Costs
    micro_batches: Division


def check_keywords(caller: Callable[..., object], known: type, given: Iterable[str]) -> None:
    """Check the names of options that a function or a class of ``znni`` takes as ``**options``.

    Args:
        caller: it.
        known: the ``TypedDict`` of its options, such as ``PlanOptions``.
        given: names of the options that it was called with.

    Raises:
        TypeError: it takes no such argument: what Python says of a function without options.
    """
    for name in given:
        if name not in (options := known.__annotations__):
            names = {*signature(caller).parameters, *options} - {"options"}
            close = get_close_matches(name, names, n=1)
            hint = f". Did you mean {close[0]!r}?" if close else ""
            raise TypeError(
                f"znni.{caller.__qualname__}() got an unexpected keyword argument {name!r}{hint}"
            )


@dataclass(frozen=True)
class Stored:
    """How the values at both ends of a run are stored.

    Attributes:
        dtype: of the output; ``uint8`` stores 0..1 as 0..255.
        input_itemsize: bytes of one stored input value.
        output_array: bytes of an array for the whole output, if the run makes one.

    Raises:
        InvalidInput: the type is not among its choices.
    """

    dtype: OutputType = "float32"
    input_itemsize: int = 4
    output_array: int = 0

    def __post_init__(self) -> None:
        check_names(dtype=self.dtype)


AS_COMPUTED = Stored()
ANYTHING = Choices()


def memory_size(given: int | str) -> int:
    """Bytes of memory from ``8GiB``, ``500MB`` or a plain number of bytes.

    Raises:
        ValueError: it is none of these.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        if not re.fullmatch(r"\d+(\.\d+)? *[A-Za-z]*", str(given).strip()):
            raise ValueError  # pydantic would take the part that it can read
        return int(TypeAdapter(ByteSize).validate_python(given))
    except (ValueError, ValidationError, OverflowError):
        raise ValueError(f"{given!r} is not a size of memory; write it as 8GiB or 500MB") from None
